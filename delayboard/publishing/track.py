"""Following a publication: sent, on its way, arrived and how late, or not to be seen and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from analytics.buckets import OVERDUE_AFTER
from analytics.events import CLOCK_RESOLUTION_MS
from analytics.scheduled.queries.listing import Observation, read_observations
from delayboard.models import BackgroundTask, Publication
from delayboard.models.background_task import task_key
from delayboard.models.publication import Sent
from topology.delays import format_ms, format_span
from topology.graph.live_values import make_version

GIVE_UP_AFTER = timedelta(minutes=10)


@dataclass(frozen=True)
class Track:
    """`mark`: sending, waiting, arrived, late, lost, not_observed; `is_settled` ends it."""

    mark: str
    sentence: str
    is_settled: bool
    observation: Observation | None = None

    @property
    def lateness_text(self) -> str:
        """A dash while it may still be measured."""
        seen = self.observation
        if seen is None or seen.arrived_at is None:
            return "not observed" if self.mark == "not_observed" else "–"
        late = seen.lateness if seen.caught_up else None
        return "unknown" if late is None else _with_sign(late)

    @property
    def version(self) -> str:
        """Changes when the page of the publication shows something else."""
        seen = self.observation
        times = seen and (seen.entered_at, seen.due_at, seen.arrived_at)
        return make_version(self.mark, self.sentence, self.lateness_text, times)


@dataclass(frozen=True)
class Step:
    """One queue of the planned route, and when a tap saw the message reach it, if one did.

    When `caught_up` is false the time is that of a recorder that was behind.
    """

    queue: str
    is_wait: bool
    planned_at: datetime
    observed_at: datetime | None
    caught_up: bool = True

    @property
    def difference(self) -> str:
        """The difference to the planned time: "+12ms"; "" where nothing was observed."""
        if self.observed_at is None:
            return ""
        if not self.caught_up:
            return "recorded late"
        return _with_sign(self.observed_at - self.planned_at)


def make_steps(publication: Publication, seen: Observation | None) -> list[Step]:
    """The planned hops beside what the taps observed: the entry and the exit of the delay.

    They are planned from the due time that the lateness counts from.
    """
    last = len(publication.hops) - 1
    begun_at = publication.created_at
    if seen and seen.due_at and publication.due_at:
        begun_at += seen.due_at - publication.due_at
    entered_at = seen.entered_at if seen else None
    arrived_at = seen.arrived_at if seen else None
    return [
        Step(
            hop["queue"],
            hop["is_wait"],
            begun_at + timedelta(milliseconds=hop["after_ms"]),
            arrived_at if place == last else None if place else entered_at,
            caught_up=seen is None or seen.caught_up,
        )
        for place, hop in enumerate(publication.hops)
    ]


def late_ms(lateness: timedelta) -> float:
    """Milliseconds late; 0 where a reading before the due time is within the clock's resolution."""
    late = lateness / timedelta(milliseconds=1)
    return 0.0 if -CLOCK_RESOLUTION_MS <= late < 0.5 else late


def _with_sign(lateness: timedelta) -> str:
    text = format_ms(late_ms(lateness))
    return text if text[0] in "-0" else f"+{text}"


def _in_seconds(span: timedelta) -> str:
    return format_span(timedelta(seconds=round(span.total_seconds())))


def track(publication: Publication, now: datetime) -> Track:
    """The state of a publication, from its row and from the taps."""
    (found,) = track_all([publication], now)
    return found


def track_all(publications: Sequence[Publication], now: datetime) -> list[Track]:
    """The state of each, in their order."""
    seen = read_observations([str(one.pk) for one in publications])
    tapped = (one.topology for one in publications if one.topology and one.topology.has_tap)
    keys = {task_key("record", topology.slug) for topology in tapped}
    recorders = {task.key: task for task in BackgroundTask.objects.filter(key__in=keys)}
    return [
        _track(one, _complete(one, seen.get(str(one.pk))), recorders, now) for one in publications
    ]


def _complete(publication: Publication, seen: Observation | None) -> Observation | None:
    """With the due time by the publish and its delay, where no tap saw the entry.

    What arrives between that time and the due time by the entry is on time: the entry was recorded
    late by as much.
    """
    due = publication.due_at if publication.predicted_delay_ms else None
    if seen is None or due is None:
        return seen
    arrived = seen.arrived_at
    if seen.due_at is None and seen.entered_at is None:
        return replace(seen, due_at=due, lateness=arrived - due if arrived else None)
    if seen.due_at and arrived and due <= arrived < seen.due_at:
        return replace(seen, due_at=arrived, lateness=timedelta(0))
    return seen


def _track(
    publication: Publication,
    seen: Observation | None,
    recorders: Mapping[str, BackgroundTask],
    now: datetime,
) -> Track:
    outcome = publication.outcome
    if outcome == Sent.SENDING:
        return Track("sending", "Delayboard is publishing the message.", is_settled=False)
    if outcome == Sent.REFUSED:
        return Track("lost", f"The message was not published. {publication.error}", is_settled=True)
    if seen and seen.arrived_at:
        return _arrived(publication, seen)
    due = publication.due_at
    through = publication.topology_id is not None
    if publication.unobservable_why and (not through or due is None or now >= due):
        doubt = (
            f"{publication.error} "
            if outcome == Sent.UNKNOWN
            else "The broker confirmed the message. "
        )
        return Track("not_observed", doubt + publication.unobservable_why, True, seen)
    return _waiting(publication, seen, recorders, now)


def _arrived(publication: Publication, seen: Observation) -> Track:
    assert seen.arrived_at is not None
    at = f"{seen.arrived_at:%H:%M:%S.%f}"[:-3]
    if seen.lateness is None:
        return Track("arrived", f"The message arrived at {at} UTC.", True, seen)
    if not seen.caught_up:
        behind = "The recorder was behind, so the lateness is unknown."
        return Track("arrived", f"The message arrived at about {at} UTC. {behind}", True, seen)
    late = late_ms(seen.lateness)
    how = f"{format_ms(abs(late))} {'early' if late < 0 else 'late'}" if late else "on time"
    sentence = f"The message arrived at {at} UTC, {how}."
    return Track("arrived", sentence, True, seen)


def _waiting(
    publication: Publication,
    seen: Observation | None,
    recorders: Mapping[str, BackgroundTask],
    now: datetime,
) -> Track:
    is_confirmed = publication.outcome == Sent.CONFIRMED
    begun = (
        "The broker confirmed the message"
        if is_confirmed
        else "The message may or may not be published"
    )
    silent = _recorder_problem(publication, recorders)
    due = seen.due_at if seen and seen.due_at else publication.due_at
    if due is None:
        return Track("not_observed", f"{begun}. {publication.prediction}", is_settled=True)
    if now < due + OVERDUE_AFTER:
        remaining = _in_seconds(max(due - now, timedelta(0)))
        entered = "The message waits in the delay" if seen else begun
        return Track("waiting", f"{entered}, due in {remaining}.{silent}", False, seen)
    is_abandoned = now > due + GIVE_UP_AFTER
    late = _in_seconds(now - due)
    return Track(
        "late",
        f"{begun}. It was due {late} ago, and its delivery is not observed.{silent}",
        is_abandoned,
        seen,
    )


def _recorder_problem(publication: Publication, recorders: Mapping[str, BackgroundTask]) -> str:
    """Why nobody may be looking; "" while the recorder of its topology is at work."""
    if publication.topology is None or not publication.topology.has_tap:
        return ""
    background_task = recorders.get(task_key("record", publication.topology.slug))
    if background_task is None or background_task.is_late:
        return " The recorder is not running. Start the worker to observe the delivery."
    if background_task.is_failing:
        return f" The recorder fails: {background_task.last_error}"
    return ""
