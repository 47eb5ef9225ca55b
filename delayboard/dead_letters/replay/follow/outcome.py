"""The outcome of replayed messages: delivered (observed), died again, or not observed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from threading import Event

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from delayboard.dead_letters.parked.store import ReturnedMessage
from delayboard.dead_letters.replay.follow import (
    arrivals,
    batch_follower,
    match_messages,
    observers,
)
from delayboard.dead_letters.replay.follow.arrivals import Mark
from delayboard.dead_letters.replay.follow.observers import Scene
from delayboard.models import ReplayBatch, ReplayItem
from delayboard.models.background_task import Beat
from delayboard.models.replay import ReplayOutcome
from topology import snapshots
from topology.models import Broker
from topology.snapshots import Latest

PAUSE_SECONDS = 1.0


def record_returned(
    broker: Broker, named: Iterable[tuple[str, ReturnedMessage]], at: datetime
) -> None:
    """Record that these messages, by replay header and content, may be replayed messages that
    died again.

    Runs in the transaction that parks or imports them. Anybody can write the header: messages that
    do not match an item of this broker are ignored.
    """
    for batch, positions in match_messages.find_sent(broker, list(named)):
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
    # Seen dead by a look, and parked since.
    named = [item for item in found if item.outcome == ReplayOutcome.DIED and item.died_as is None]
    arrivals.write_marks(
        [Mark(item.pk, ReplayOutcome.DIED, at, positions[item.position]) for item in fresh]
    )
    arrivals.write_marks(
        [
            Mark(item.pk, ReplayOutcome.DIED, item.outcome_at, positions[item.position])
            for item in named
        ]
    )
    if fresh:
        arrivals.count_arrived(batch, [item.pk for item in fresh])
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
    followers: dict[int, batch_follower.Follower] = {}
    while not stop.is_set():
        now = timezone.now()
        batches = batch_follower.read_open_batches()
        followers = {row.pk: followers.get(row.pk, batch_follower.Follower()) for row in batches}
        for batch in batches:
            if stop.is_set():
                return
            follow_batch(batch, followers[batch.pk], now)
            beat({"followed": len(batches)})
        beat({"followed": len(batches)})
        stop.wait(PAUSE_SECONDS)


def follow_batch(batch: ReplayBatch, follower: batch_follower.Follower, now: datetime) -> None:
    """Record what taps and peeks reported of its messages since the last call."""
    follower.record_arrivals(batch)
    peeked = follower.peek_dead(batch, now)
    for found, positions in match_messages.find_sent(batch.broker, peeked) if peeked else ():
        if found == batch.pk:
            with transaction.atomic():
                record_died(batch.pk, positions, now)
    follower.resolve_died(batch, now)
    if follower.is_over(batch, now):
        batch_follower.close_batch(batch, now)
