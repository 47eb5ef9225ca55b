"""The outcome of replayed messages: delivered (observed), died again, or not observed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Event
from typing import Literal

from django.db import transaction
from django.db.models import BooleanField, F, Q, QuerySet, Value
from django.db.models.expressions import RawSQL
from django.db.models.functions import Coalesce
from django.utils import timezone

from delayboard.dead_letters.parked.store import ReturnedMessage
from delayboard.dead_letters.queues import peek
from delayboard.dead_letters.replay import observers, seen_messages
from delayboard.dead_letters.replay.observers import Scene
from delayboard.dead_letters.replay.options import Stage
from delayboard.dead_letters.replay.seen_messages import Mark
from delayboard.models import ItemState, ParkedState, ReplayBatch, ReplayItem
from delayboard.models.background_task import REPLAYS, Beat, is_missing
from delayboard.models.replay import ENDED_BATCH, Order, ReplayOutcome
from topology import snapshots
from topology.broker.errors import BrokerError
from topology.delays import format_delay
from topology.message import REPLAY_HEADER
from topology.models import Broker
from topology.snapshots import Latest

NO_WORKER = "No worker runs: arrivals and deaths are not observed until one does."
PAUSE_SECONDS = 1.0
# Time for which a batch is followed after its last publish at least, and the time added to what its
# messages may take to die again.
LEAST = timedelta(minutes=10)
SLACK = timedelta(minutes=1)
# Most items in one pass of one batch.
MOST_ITEMS = 5000
SCENE_LASTS = timedelta(seconds=30)
PEEK_EVERY = timedelta(seconds=30)
MOST_PEEKS = 3
# Most routes in one query.
MOST_ROUTES = 500
# Condition in the exact words of the index items_that_died.
_HAS_DIED = RawSQL("outcome = 'died'", (), output_field=BooleanField())
# Time after their publish in which dead ones may be in a queue that is peeked now and then.
PEEKS_TAKE = PEEK_EVERY + SCENE_LASTS
Action = Literal["wait", "go on", "stop", "ask"]


def record_returned(
    broker: Broker, named: Iterable[tuple[str, ReturnedMessage]], at: datetime
) -> None:
    """Record that these messages, by replay header and content, may be replayed messages that
    died again.

    Runs in the transaction that parks or imports them. Anybody can write the header: messages that
    do not match an item of this broker are ignored.
    """
    for batch, positions in seen_messages.find_sent(broker, list(named)):
        record_died(batch, positions, at)


def record_died(batch: int, positions: Mapping[int, int | None], at: datetime) -> int:
    """Write down that these items of a batch died again, each as its message if it has one.

    In the caller's transaction. How many were not known to have; each counts once.
    """
    rows = ReplayItem.objects.filter(batch=batch, position__in=positions, attempts__gt=0)
    columns = ("pk", "position", "outcome", "outcome_at", "died_as")
    found = list(rows.order_by("pk").select_for_update().values_list(*columns, named=True))
    fresh = [item for item in found if item.outcome != ReplayOutcome.DIED]
    arrived = sum(item.outcome == ReplayOutcome.DELIVERED for item in fresh)
    # Those that a look saw dead, and that were parked since, keep their time.
    times = {item.pk: item.outcome_at for item in found if item.died_as is None}
    times |= {item.pk: at for item in fresh}
    died = ReplayOutcome.DIED
    seen_messages.write_marks(
        [
            Mark(item.pk, died, times[item.pk], positions[item.position])
            for item in found
            if item.pk in times
        ]
    )
    if fresh:
        seen_messages.count_arrived(batch, [item.pk for item in fresh])
        ReplayBatch.objects.filter(pk=batch).update(
            died=F("died") + len(fresh), delivered=F("delivered") - arrived
        )
    return len(fresh)


def explain_stop(batch: ReplayBatch) -> str:
    """Why a running batch must stop itself, "" as long as it need not."""
    number = ReplayBatch.objects.values_list("died", flat=True).get(pk=batch.pk)
    if not batch.stop_after or number < batch.stop_after:
        return ""
    return f"{number} messages were dead-lettered again. Find out why before you resume."


def count_outcomes(batch: ReplayBatch) -> dict[ReplayOutcome, int]:
    """How many messages that were published, or may have been, have which outcome."""
    delay_routes = list(batch.routes.filter(after_ms__gt=0).order_by().values_list("pk", flat=True))
    rows = batch.items.filter(outcome=ReplayOutcome.DELAYED)
    delayed = rows.filter(route__in=delay_routes[:MOST_ROUTES]).count() if delay_routes else 0
    unobserved = batch.published - batch.delivered - batch.died - delayed
    return {
        ReplayOutcome.DELIVERED: batch.delivered,
        ReplayOutcome.DIED: batch.died,
        ReplayOutcome.DELAYED: delayed,
        ReplayOutcome.UNOBSERVED: max(0, unobserved),
    }


def list_warnings(batch: ReplayBatch, *, hides: bool = False) -> list[str]:
    """What would not be seen of its messages once they are sent, in sentences.

    With `hides` none that names a target.
    """
    unobserved = "" if hides else explain_unobserved(batch)
    found = [NO_WORKER if is_missing(REPLAYS) else "", unobserved]
    return [warning for warning in found if warning]


def explain_unobserved(batch: ReplayBatch) -> str:
    """What nobody sees of its messages, in sentences; "" where all is seen."""
    known = snapshots.fresh(batch.broker)
    return explain_unobserved_in(
        batch, observers.make_scene(batch, known.snapshot) if known.snapshot else None, known
    )


def explain_unobserved_in(batch: ReplayBatch, scene: Scene | None, known: Latest) -> str:
    """The same in a scene, which is None where nothing is known of the broker."""
    if scene is None:
        return f"Whether arrivals and deaths are observed is not known: {known.error}"
    unobserved = (
        observers.explain_unobserved_arrivals(batch, scene),
        observers.explain_unobserved_deaths(batch, scene),
    )
    return " ".join(sentence for sentence in unobserved if sentence)


def follow_batches(*, stop: Event, beat: Beat) -> None:
    """Follow what was replayed until `stop` is set. `beat` gets `followed`, how many batches."""
    followers: dict[int, Follower] = {}
    while not stop.is_set():
        now = timezone.now()
        batches = read_open_batches()
        followers = {row.pk: followers.get(row.pk, Follower()) for row in batches}
        for batch in batches:
            if stop.is_set():
                return
            follow_batch(batch, followers[batch.pk], now)
            beat({"followed": len(batches)})
        beat({"followed": len(batches)})
        stop.wait(PAUSE_SECONDS)


def follow_batch(batch: ReplayBatch, follower: Follower, now: datetime) -> None:
    """Record what taps and peeks reported of its messages since the last call."""
    follower.record_arrivals(batch)
    peeked = follower.peek_dead(batch, now)
    for found, positions in seen_messages.find_sent(batch.broker, peeked) if peeked else ():
        if found == batch.pk:
            with transaction.atomic():
                record_died(batch.pk, positions, now)
    follower.resolve_died(batch, now)
    if follower.is_over(batch, now):
        close_batch(batch, now)


def read_open_batches() -> list[ReplayBatch]:
    """The batches that were started and are still followed."""
    is_open = ~Q(state__in=ENDED_BATCH) | Q(followed_to=None) | Q(followed_to__lte=F("state_at"))
    rows = ReplayBatch.objects.filter(is_open, started_at__isnull=False)
    if not rows.exists():
        # Mostly, and it takes a fifth of the time to find that out.
        return []
    return list(rows.select_related("broker").defer("parked_messages").order_by("pk"))


@dataclass
class Follower:
    """What is remembered of a batch between two passes; a new one finds it out again.

    `position` is how far its items were looked at in this round, `scene` what its broker was like.
    """

    position: int = 0
    scene: Scene | None = None
    scene_at: datetime | None = None
    peeked_at: datetime | None = None
    _is_open: bool | None = field(default=None)

    def record_arrivals(self, batch: ReplayBatch) -> int:
        """Write down which of the next open items were seen to arrive; how many."""
        if not batch.published or not seen_messages.is_recorded(batch):
            return 0
        number = 0
        for _ in range(MOST_ITEMS // seen_messages.CHUNK):
            items = seen_messages.read_open_items(batch, self.position)
            number += seen_messages.record_arrivals(batch, items)
            self.position = items[-1].position if len(items) == seen_messages.CHUNK else 0
            if not self.position:
                break
        return number

    def resolve_died(self, batch: ReplayBatch, now: datetime) -> None:
        """What was sent to a delay, or may have arrived, and died again has arrived: its message is
        replayed.
        """
        if self._is_open is None:
            delays = batch.routes.filter(after_ms__gt=0)
            self._is_open = delays.exists() or find_died_open(batch).exists()
        self._is_open = self._is_open or batch.unknown > 0
        if not self._is_open:
            return
        parked_messages = list(find_died_open(batch)[: seen_messages.CHUNK])
        if parked_messages:
            with transaction.atomic():
                seen_messages.mark_replayed(batch, [key for key in parked_messages if key], now)

    def peek_dead(self, batch: ReplayBatch, now: datetime) -> list[tuple[str, ReturnedMessage]]:
        """What names a replay in its dead-letter queues that nobody parks, where looks are free."""
        if self.peeked_at is not None and now - self.peeked_at < PEEK_EVERY:
            return []
        self.peeked_at = now
        sent = batch.settled - batch.cancelled
        if not batch.published or batch.died >= sent:
            return []
        scene = self._scene(batch, now)
        if scene is None:
            return []
        found: list[tuple[str, ReturnedMessage]] = []
        queues = observers.find_peekable(batch.broker, scene)
        full = [queue for queue in queues if scene.snapshot.numbers[queue.name].messages]
        for queue in full[:MOST_PEEKS]:
            with suppress(BrokerError):
                found_now = peek.peek_queue(batch.broker, queue, scene.snapshot)
                found += _find_replay_ids(found_now.peeked_messages)
        return found

    def is_over(self, batch: ReplayBatch, now: datetime) -> bool:
        """Whether no more reports on its messages are expected."""
        if not batch.is_ended or now < batch.state_at + LEAST:
            return False
        return now > find_follow_end(batch, self._scene(batch, now))

    def _scene(self, batch: ReplayBatch, now: datetime) -> Scene | None:
        """None while the broker does not answer."""
        if self.scene_at is None or now - self.scene_at > SCENE_LASTS:
            self.scene_at = now
            known = snapshots.fresh(batch.broker)
            snapshot = known.snapshot if known.is_reachable else None
            self.scene = observers.make_scene(batch, snapshot) if snapshot else None
        return self.scene


def find_follow_end(batch: ReplayBatch, scene: Scene | None) -> datetime:
    """The end of the follow time of an ended batch; `scene` is None for an unreachable broker."""
    longest = observers.LONGEST_ROUND if scene is None else observers.estimate_round(batch, scene)
    return batch.state_at + max(LEAST, longest + SLACK)


def close_batch(batch: ReplayBatch, now: datetime) -> None:
    """End the observation of a batch: of what was not seen nothing more is expected.

    What was sent to a delay stays so: that is all that is known of it.
    """
    for start in range(0, batch.selected, MOST_ITEMS):
        batch.items.filter(
            position__gt=start,
            position__lte=start + MOST_ITEMS,
            state__in=(ItemState.DONE, ItemState.UNKNOWN),
            outcome="",
        ).update(outcome=ReplayOutcome.UNOBSERVED, outcome_at=now)
    ReplayBatch.objects.filter(pk=batch.pk).update(followed_to=now)


def find_died_open(batch: ReplayBatch) -> QuerySet[ReplayItem, int | None]:
    """The messages of items that died again and are marked as delayed or parked still.

    Starts from the items that died, never from all messages in a delay.
    """
    state = Coalesce("parked_message__state", Value(""))
    dead = batch.items.filter(_HAS_DIED).annotate(parked_message_state=state)
    is_delayed = Q(route__after_ms__gt=0, parked_message_state=ParkedState.DELAYED)
    # The item has the reason why there was no confirm.
    is_parked = ~Q(error="") & Q(parked_message_state=ParkedState.PARKED)
    rows = dead.filter(is_delayed | is_parked).order_by()
    return rows.values_list("parked_message_id", flat=True)


def _find_replay_ids(
    parked_messages: Iterable[peek.PeekedMessage],
) -> Iterator[tuple[str, ReturnedMessage]]:
    for one in parked_messages:
        if tag := one.message.tag(REPLAY_HEADER):
            sha256 = hashlib.sha256(one.message.body).hexdigest()
            yield tag, ReturnedMessage(one.message.properties, one.content_id, sha256)


@dataclass(frozen=True)
class CanaryResult:
    """The result of the first messages; `ask`: a user has to decide. `why` is a sentence."""

    action: Action
    why: str


def find_watch_end(batch: ReplayBatch, now: datetime) -> datetime:
    """The time until which the first messages, published just now, are observed. Raises
    BrokerError.

    As long as the user typed, else one retry round of the target.
    """
    if batch.canary_seconds:
        return now + timedelta(seconds=batch.canary_seconds)
    scene = observers.make_scene(batch, snapshots.recent(batch.broker))
    return now + observers.estimate_round(batch, scene)


def check_canary(batch: ReplayBatch, now: datetime) -> CanaryResult:
    """Whether the rest may follow the first ones, which were published before `canary_until`."""
    first = _read_first(batch)
    number = len(first)
    if batch.stages and not number:
        return CanaryResult("go on", "A stage adds no message to the one before.")
    stage = batch.stages_done + 1
    part = f"the {number} of stage {stage}" if batch.stages else f"the first {number}"
    died = sum(outcome == ReplayOutcome.DIED for _, outcome in first)
    allowed = batch.stages[batch.stages_done][2] if batch.stages_done < len(batch.stages) else 0
    if died > allowed:
        died_again = f"{died} of {part} were dead-lettered again."
        return CanaryResult("stop", f"The canary failed: {died_again}")
    unconfirmed = sum(state != ItemState.DONE for state, _ in first)
    if unconfirmed == number:
        return CanaryResult("ask", "The broker confirmed none of the first messages.")
    if batch.canary_until is not None and now < batch.canary_until:
        typed = timedelta(seconds=batch.canary_seconds)
        span = format_delay(typed) if typed else "one retry round of the target"
        sentence = (
            f"Delayboard observes the first {number} messages until "
            f"{batch.canary_until:%Y-%m-%d %H:%M:%S} UTC: {span}."
        )
        return CanaryResult("wait", sentence)
    quiet = f"No death of {part} was observed."
    if died:
        quiet = f"{died} of {part} were dead-lettered again, at most {allowed} may be."
    if unconfirmed:
        why = f"The broker did not confirm {unconfirmed} of {part}."
        return CanaryResult("ask", why)
    if not batch.canary_goes_on:
        return CanaryResult("ask", f"{quiet} Resume the replay manually.")
    try:
        scene = observers.make_scene(batch, snapshots.recent(batch.broker))
    except BrokerError as error:
        return CanaryResult("ask", f"{quiet} Whether deaths are observed is not known: {error}")
    longest, typed = observers.estimate_round(batch, scene), timedelta(seconds=batch.canary_seconds)
    if typed and typed < longest:
        return CanaryResult(
            "ask",
            f"{quiet} The observation time of {format_delay(typed)} is shorter than one retry "
            f"round of the target, {format_delay(longest)}. Resume the replay manually.",
        )
    if blind := observers.explain_unobserved_deaths(batch, scene):
        return CanaryResult("ask", f"{quiet} {blind}")
    if (
        observers.find_peekable(batch.broker, scene)
        and now < (batch.canary_until or now) + PEEKS_TAKE
    ):
        return CanaryResult(
            "wait", f"{quiet} Delayboard peeks at the dead-letter queues once more."
        )
    return CanaryResult("go on", quiet)


def _read_first(batch: ReplayBatch) -> list[tuple[str, str]]:
    """The states and outcomes of the first that were sent; others may lie between them.

    In stages, those of the present stage alone.
    """
    order = "-position" if batch.order == Order.NEWEST else "position"
    rows = batch.items.filter(attempts__gt=0).order_by(order)
    earlier = Stage(*batch.stages[batch.stages_done - 1]) if batch.stages_done else None
    after = earlier.count(batch.to_send) if earlier else 0
    return list(rows.values_list("state", "outcome")[after : max(after, batch.canary)])
