"""Replay batches: frozen from what was shown, started, cancelled."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from django.db import transaction
from django.utils import timezone

from delayboard.dead_letters.browse import Letter
from delayboard.dead_letters.failure import kept
from delayboard.dead_letters.replay.verdict import Target, default_target, judge
from delayboard.models import ItemState, ReplayBatch, ReplayItem
from topology import audit, work
from topology.models import Broker, State, Topology, WorkState
from topology.routing.index import Index
from topology.rows import waiters_at
from topology.snapshot import Snapshot

KIND = "replay"


class BatchError(Exception):
    """The batch was not made or not started; the sentence says why."""


def delay_queues(broker: Broker) -> set[str]:
    """The queues in which a message of an applied topology waits out a delay."""
    applied = Topology.objects.filter(broker=broker).exclude(state=State.TORN_DOWN)
    return {
        queue.name
        for topology in applied
        for queue in topology.pattern.definitions(topology.parsed).queues
        if queue.message_ttl_ms is not None
    }


def freeze(
    user: Any,
    broker: Broker,
    queue: str,
    letters: Sequence[Letter],
    snapshot: Snapshot,
    *,
    typed: Target | None = None,
) -> ReplayBatch:
    """A draft with one item per letter, its target and verdict. Raises BatchError.

    `typed` overrides the default target for all of them.
    """
    if not letters:
        raise BatchError("No message was chosen, or the chosen ones are no longer in the queue.")
    index = Index(snapshot.definitions.without_taps())
    consumed = snapshot.consumed
    waits = delay_queues(broker)
    waiters, now_ms = waiters_at(broker), time.time_ns() // 1_000_000
    items = []
    for position, letter in enumerate(letters, start=1):
        target = typed or default_target(letter.history, index, waits)
        if target is None:
            raise BatchError(
                f"Message {position} has no death that tells where it came from: "
                "type the exchange and key to send it to."
            )
        verdict = judge(
            target,
            queue,
            index,
            consumed,
            letter.message,
            version=snapshot.version_tuple,
            waiters=waiters,
            now_ms=now_ms,
        )
        items.append(_item(position, letter, target, verdict.sentence, verdict.is_good))
    return _saved(user, broker, queue, items)


def start(user: Any, batch: ReplayBatch, *, despite_verdict: bool) -> None:
    """Hand the draft to the worker. Raises BatchError for a bad verdict without a typed yes."""
    bad = batch.items.filter(verdict_is_good=False).count()
    if bad and not despite_verdict:
        raise BatchError(f"{bad} messages have a bad verdict: type “yes” to replay them anyway.")
    with transaction.atomic():
        locked = ReplayBatch.objects.select_for_update().get(pk=batch.pk)
        if not locked.is_draft:
            raise BatchError("This replay was started already.")
        locked.work = work.ask(
            KIND, batch.pk, broker=batch.broker, user=user, total=batch.items.count()
        )
        locked.save(update_fields=["work"])
        audit.record(
            user,
            "replay started",
            broker=batch.broker,
            what=batch.queue,
            details={"batch": batch.pk, "messages": locked.items.count(), "bad_verdicts": bad},
        )


def cancel(user: Any, batch: ReplayBatch) -> None:
    """What is not published yet stays where it is. Raises BatchError on a draft or an ended one."""
    if batch.work is None or batch.is_ended:
        raise BatchError("This replay is not running.")
    work.cancel(batch.work)
    batch.work.refresh_from_db()
    if batch.work.state == WorkState.CANCELLED:
        close_cancelled(batch)
    audit.record(
        user, "replay cancelled", broker=batch.broker, what=batch.queue, details={"batch": batch.pk}
    )


def close_cancelled(batch: ReplayBatch) -> None:
    """Items that were not begun end as cancelled; so do those whose publish is unsettled."""
    now = timezone.now()
    batch.items.filter(state=ItemState.PENDING).update(state=ItemState.CANCELLED, ended_at=now)
    batch.items.filter(state=ItemState.PUBLISHING).update(
        state=ItemState.CANCELLED,
        may_be_duplicated=True,
        ended_at=now,
        error="Cancelled while its publish was unsettled: it may have been published.",
    )


def chosen(letters: Collection[Letter], handles: Collection[str]) -> list[Letter]:
    return [letter for letter in letters if letter.handle in handles]


def _item(position: int, letter: Letter, target: Target, verdict: str, is_good: bool) -> ReplayItem:
    return ReplayItem(
        position=position,
        content_id=letter.content_id,
        message_id=kept(letter.message.properties.message_id or ""),
        size=len(letter.message.body),
        target_exchange=target.exchange,
        target_key=target.routing_key,
        target_why=target.why,
        verdict=verdict,
        verdict_is_good=is_good,
    )


def _saved(user: Any, broker: Broker, queue: str, items: list[ReplayItem]) -> ReplayBatch:
    with transaction.atomic():
        batch = ReplayBatch.objects.create(broker=broker, queue=queue, created_by=user)
        for item in items:
            item.batch = batch
        ReplayItem.objects.bulk_create(items)
        audit.record(
            user,
            "replay prepared",
            broker=broker,
            what=queue,
            details={"batch": batch.pk, "messages": len(items)},
        )
    return batch
