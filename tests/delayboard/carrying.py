"""What tests of a whole replay share: one claim of it, and whether it adds up."""

from __future__ import annotations

from threading import Event
from typing import Any

from delayboard.dead_letters.replay.send_batch import replay
from delayboard.models import MessageGroup, ParkedMessage, ParkedState, ReplayBatch
from tests.delayboard.builders import states
from topology import work
from topology.broker.amqp.pipeline import Answer
from topology.models import Work, WorkState

RETURNED = Answer("returned", "no queue")


def carried(batch: ReplayBatch, stop: Event | None = None) -> Work:
    """What becomes of it by one claim."""
    Work.objects.filter(state=WorkState.WAITING).update(not_before_at=None)
    claimed = work.claim(("replay",), "worker")
    assert claimed is not None
    work.attempt(replay, claimed, stop=stop or Event())
    batch.refresh_from_db()
    adds_up(batch)
    return Work.objects.get(pk=claimed.pk)


def adds_up(batch: ReplayBatch) -> None:
    """Items, counters of the batch and of the groups, and the messages' states say the same."""
    ended = [state for state in states(batch) if state not in ("pending", "publishing")]
    counts = batch.counts()
    assert sum(counts.values()) == batch.selected == batch.items.count()
    assert {state: ended.count(state) for state in counts if state != "pending"} == {
        state: number for state, number in counts.items() if state != "pending"
    }
    assert batch.doubled == batch.items.filter(may_be_duplicated=True).count()
    for group in MessageGroup.objects.all():
        for state in ParkedState:
            held = ParkedMessage.objects.filter(group=group, state=state).count()
            assert getattr(group, state) == held, state


def changed(model: type[ReplayBatch] | type[Work], **values: Any) -> None:
    model._default_manager.update(**values)


def parked_message_states(batch: ReplayBatch) -> list[str]:
    return list(batch.items.values_list("parked_message__state", flat=True))


def errors(batch: ReplayBatch) -> list[str]:
    return list(batch.items.values_list("error", flat=True))
