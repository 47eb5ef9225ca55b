"""What can be watched, who may watch it, and the state of it now."""

from __future__ import annotations

import re
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

from analytics.models import Run, ScheduledMessage
from delayboard.alerts.messages import make_log_version
from delayboard.live.changed_rows import make_message_version, parked_state, scheduled_state
from delayboard.live.page_state import (
    State,
    batch_state,
    broker_state,
    job_state,
    run_state,
    state,
    track_state,
)
from delayboard.models import BatchState, Publication, PublishJob, ReplayBatch
from delayboard.now.board import share_overview
from delayboard.now.system import TaskLine, background_tasks_of, make_tasks_version
from delayboard.publishing.track import track
from topology import access, snapshots
from topology.database import paging
from topology.models import Broker, Role
from topology.operations.queue_reports import with_reports
from topology.snapshots import Latest

STATE_SECONDS = 0.7
NOW_SECONDS = 1.0
ROWS_SECONDS = 2.0
PACE_OVER = timedelta(seconds=10)


@dataclass(frozen=True)
class Subject:
    """`read` works the state out, every `seconds`; one thread does it for all who watch. In its
    place `read_rows` does it for what their pages show.

    `broker` None is for whoever may see all of `brokers`, or any broker at all if these are
    none.
    """

    key: str
    broker: Broker | None
    read: Callable[[], State]
    seconds: float
    brokers: tuple[Broker, ...] = ()
    read_rows: Callable[[frozenset[str]], State] | None = None


def find(kind: str, name: str, poll_seconds: float) -> Subject | None:
    """The subject of /ws/<kind>/<name>/, None when there is none."""
    match kind:
        case "brokers":
            return _broker(Broker.objects.filter(slug=name).first(), poll_seconds)
        case "publications":
            return _of_row(kind, Publication, name, _track)
        case "jobs":
            return _of_row(kind, PublishJob, name, _read_job)
        case "replays":
            return _batch(name)
        case "runs":
            return _run(name)
        case "now":
            return _of_brokers(kind, name, _read_now)
        case "system":
            return _of_brokers(kind, name, _read_system)
        case "alerts":
            return Subject("alerts", None, _read_alerts, ROWS_SECONDS)
        case "message":
            return _message(name)
        case "scheduled":
            return _rows_of_brokers(kind, name, scheduled_state)
        case "parked":
            return _rows_of_brokers(kind, name, parked_state)
    return None


def may_watch(user: Any, subject: Subject) -> bool:
    if subject.brokers:
        return all(access.roles_for(user, subject.brokers).values())
    if subject.broker is None:
        return access.visible_brokers(user).exists()
    return access.may(user, subject.broker, Role.VIEWER)


def _broker(broker: Broker | None, poll_seconds: float) -> Subject | None:
    if broker is None:
        return None
    # Half the interval, so that a poll made for another page a moment ago serves here too, and
    # one of our own last turn does not.
    age = timedelta(seconds=poll_seconds / 2)
    return Subject(
        f"brokers/{broker.slug}",
        broker,
        lambda: broker_state(_with_reports(broker, snapshots.fresh(broker, age))),
        poll_seconds,
    )


def _with_reports(broker: Broker, known: Latest) -> Latest:
    return replace(known, snapshot=known.snapshot and with_reports(broker, known.snapshot))


def _of_row(
    kind: str, model: type[Publication | PublishJob], name: str, read: Callable[[uuid.UUID], State]
) -> Subject | None:
    try:
        found = model.objects.select_related("broker").filter(pk=uuid.UUID(name)).first()
    except ValueError:
        return None
    if found is None:
        return None
    return Subject(f"{kind}/{found.pk}", found.broker, partial(read, found.pk), STATE_SECONDS)


def _track(key: uuid.UUID) -> State:
    publication = Publication.objects.select_related("topology").get(pk=key)
    now = datetime.now(UTC)
    return track_state(track(publication, now), now)


def _read_job(key: uuid.UUID) -> State:
    job = PublishJob.objects.select_related("work").defer("body", "properties").get(pk=key)
    return job_state(job, datetime.now(UTC))


def _batch(name: str) -> Subject | None:
    """A replay: `<id>`, or `<id>-<state>`, which is over as soon as it is in another state."""
    number, _, shown = name.partition("-")
    key = paging.row_number(number)
    if key is None or (shown and shown not in BatchState.values):
        return None
    found = (
        ReplayBatch.objects.select_related("broker").defer("parked_messages").filter(pk=key).first()
    )
    if found is None:
        return None
    read = partial(_read_batch, found.pk, shown, Pace())
    return Subject(f"replays/{name}", found.broker, read, STATE_SECONDS)


def _read_batch(key: int, shown: str, pace: Pace) -> State:
    batch = ReplayBatch.objects.select_related("work").defer("parked_messages").get(pk=key)
    at = datetime.now(UTC)
    settled = pace.of(batch.settled, at)
    found = batch_state(batch, at, pace=settled if batch.state == BatchState.RUNNING else None)
    return {**found, "done": found["done"] or bool(shown and shown != batch.state)}


class Pace:
    """How fast a count grows, over the last PACE_OVER."""

    def __init__(self) -> None:
        self._seen: deque[tuple[datetime, int]] = deque()

    def of(self, count: int, at: datetime) -> float | None:
        """Its growth a second; None before there is a second count."""
        self._seen.append((at, count))
        while len(self._seen) > 2 and at - self._seen[1][0] >= PACE_OVER:
            self._seen.popleft()
        first_at, first = self._seen[0]
        seconds = (at - first_at).total_seconds()
        return max(0, count - first) / seconds if seconds else None


def _message(name: str) -> Subject | None:
    """A scheduled message by its number."""
    rows = ScheduledMessage.objects.select_related("broker", "topology")
    key = paging.row_number(name)
    found = rows.filter(pk=key).first() if key is not None else None
    if key is None or found is None:
        return None

    def read() -> State:
        row, at = rows.filter(pk=key).first(), datetime.now(UTC)
        return state(at=at, cells={}, version=make_message_version(row, at) if row else "")

    return Subject(f"message/{key}", found.broker, read, ROWS_SECONDS)


def _run(name: str) -> Subject | None:
    try:
        day = date.fromisoformat(name)
    except ValueError:
        return None
    return Subject(f"runs/{day}", None, partial(_read_run, day), STATE_SECONDS)


def _read_run(day: date) -> State:
    return run_state(Run.objects.filter(day=day).first(), datetime.now(UTC))


def _of_brokers(
    kind: str, name: str, read: Callable[[tuple[Broker, ...]], State]
) -> Subject | None:
    """The numbers of the brokers with these primary keys, parted by commas."""
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", name):
        return None
    keys = {int(key) for key in name.split(",")}
    brokers = tuple(Broker.objects.filter(pk__in=keys))
    if not brokers:
        return None
    sentence = ",".join(str(broker.pk) for broker in sorted(brokers, key=lambda row: row.pk))
    return Subject(f"{kind}/{sentence}", None, partial(read, brokers), NOW_SECONDS, brokers)


def _rows_of_brokers(
    kind: str, name: str, read: Callable[[tuple[Broker, ...], frozenset[str]], State]
) -> Subject | None:
    """The rows of lists of these brokers."""
    found = _of_brokers(kind, name, lambda brokers: read(brokers, frozenset()))
    return found and replace(found, read_rows=partial(read, found.brokers), seconds=ROWS_SECONDS)


def _read_now(brokers: tuple[Broker, ...]) -> State:
    at = datetime.now(UTC)
    found = share_overview(brokers, at)
    return state(at=at, cells=found.cells, marks=found.marks, version=found.version)


def _read_alerts() -> State:
    return state(at=datetime.now(UTC), cells={}, version=make_log_version())


def _read_system(brokers: tuple[Broker, ...]) -> State:
    lines = [TaskLine(task) for task in background_tasks_of(brokers)]
    cells = {key: text for line in lines for key, text in line.cells.items()}
    marks = {line.key: line.mark for line in lines}
    version = make_tasks_version(lines)
    return state(at=datetime.now(UTC), cells=cells, marks=marks, version=version)
