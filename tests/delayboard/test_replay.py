"""A whole replay, over a queue in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.contrib.auth.models import User
from django.utils import timezone
from pytest_django import Settings

from delayboard.dead_letters.replay import batch as batches
from delayboard.dead_letters.replay import send as sending
from delayboard.dead_letters.replay.send import replay
from delayboard.models import ItemState, ReplayBatch
from tests.delayboard.builders import (
    a_message,
    started,
    states,
)
from topology import work
from topology.broker.consumer import Delivery
from topology.broker.errors import (
    OutcomeUnknown,
)
from topology.definitions import Definitions
from topology.message import Message, Publish
from topology.models import Broker, Work, WorkState

pytestmark = pytest.mark.django_db


class Dead:
    """A queue in memory and a publisher: what is got and not acked stays."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.published: list[Publish] = []
        self.error: Exception | None = None
        self._unacked: list[Message] = []

    def get(self) -> Delivery | None:
        waiting = [m for m in self.messages if not any(m is held for held in self._unacked)]
        if not waiting:
            return None
        self._unacked.append(waiting[0])
        return Delivery(waiting[0], len(self._unacked), timezone.now())

    def ack(self, delivery: Delivery) -> None:
        self.messages = [m for m in self.messages if m is not delivery.message]

    def publish(self, publish: Publish) -> None:
        if self.error:
            raise self.error
        self.published.append(publish)

    def give_back(self) -> None:
        self._unacked.clear()


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch, there: dict[str, Definitions]) -> Dead:
    queue = Dead([])

    @contextmanager
    def opened(*args: Any, **kwargs: Any) -> Iterator[Dead]:
        try:
            yield queue
        finally:
            queue.give_back()

    monkeypatch.setattr(sending, "getter", opened)
    monkeypatch.setattr(sending, "publisher", opened)
    return queue


def carried_out(batch: ReplayBatch) -> Work:
    """One claim, as the last of its looks: what is not found then is closed."""
    Work.objects.update(attempts=sending.LOOKS - 1)
    claimed = work.claim(("replay",), "worker")
    assert claimed is not None
    replay(claimed)
    batch.refresh_from_db()
    return Work.objects.get(pk=claimed.pk)


def test_a_message_that_is_not_found_is_looked_for_again(
    user: User, broker: Broker, dead: Dead
) -> None:
    batch = started(user, broker, [b"1"])
    claimed = work.claim(("replay",), "worker")
    assert claimed is not None
    replay(claimed)
    claimed.refresh_from_db()
    assert (claimed.state, states(batch)) == (WorkState.WAITING, ["pending"])
    assert "1 of the chosen messages were not found yet" in claimed.error
    dead.messages = [a_message(b"1")]
    Work.objects.update(not_before_at=None)
    assert carried_out(batch).state == WorkState.DONE
    assert states(batch) == ["done"]


def test_a_replay_takes_its_messages_and_leaves_the_others(
    user: User, broker: Broker, dead: Dead
) -> None:
    batch = started(user, broker, [b"1", b"2", b"gone"])
    dead.messages = [a_message(body) for body in (b"foreign", b"2", b"1", b"1")]
    ended = carried_out(batch)
    assert (ended.state, ended.done, ended.total) == (WorkState.DONE, 2, 3)
    assert states(batch) == ["done", "done", "gone"]
    assert [publish.body for publish in dead.published] == [b"2", b"1"]
    assert [message.body for message in dead.messages] == [b"foreign", b"1"]
    assert batch.is_ended


def test_a_broker_that_breaks_gives_the_work_back_with_the_reason(
    user: User, broker: Broker, dead: Dead
) -> None:
    batch = started(user, broker, [b"1"])
    dead.messages = [a_message(b"1")]
    dead.error = OutcomeUnknown("broke")
    row = carried_out(batch)
    assert (row.state, row.error) == (WorkState.WAITING, "broke")
    assert row.not_before_at is not None
    assert states(batch) == ["publishing"]
    dead.error = None
    Work.objects.update(not_before_at=timezone.now() - timedelta(seconds=1))
    assert carried_out(batch).state == WorkState.DONE
    item = batch.items.get()
    assert (item.state, item.may_be_duplicated) == ("done", True)
    assert dead.messages == []


@pytest.mark.usefixtures("dead")
def test_a_password_that_cannot_be_opened_gives_the_work_back_too(
    user: User, broker: Broker, settings: Settings
) -> None:
    batch = started(user, broker, [b"1"])
    settings.CREDENTIAL_KEYS = [Fernet.generate_key().decode()]
    row = carried_out(batch)
    assert row.state == WorkState.WAITING
    assert "cannot be decrypted" in row.error


def test_a_cancel_in_the_middle_ends_it_with_the_rest_in_place(
    user: User, broker: Broker, dead: Dead, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    dead.messages = [a_message(b"1"), a_message(b"2")]
    publish = dead.publish

    def publish_and_cancel(one: Publish) -> None:
        publish(one)
        batches.cancel(user, ReplayBatch.objects.get())

    monkeypatch.setattr(dead, "publish", publish_and_cancel)
    row = carried_out(batch)
    assert (row.state, row.error) == (WorkState.CANCELLED, "Cancelled.")
    assert states(batch) == ["done", "cancelled"]
    assert [message.body for message in dead.messages] == [b"2"]


def test_a_confirmed_item_whose_message_is_gone_was_acked_by_us(
    user: User, broker: Broker, dead: Dead
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    batch.items.filter(position=1).update(state=ItemState.CONFIRMED)
    batch.items.filter(position=2).update(state=ItemState.PUBLISHING)
    carried_out(batch)
    assert states(batch) == ["done", "gone"]
    assert batch.items.get(position=2).may_be_duplicated
    assert dead.published == []


def test_a_worker_whose_lease_was_taken_over_ends_nothing(
    user: User, broker: Broker, dead: Dead, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    dead.messages = [a_message(b"1"), a_message(b"2")]
    publish = dead.publish

    def publish_late(one: Publish) -> None:
        publish(one)
        Work.objects.update(owner="another", fence=99)

    monkeypatch.setattr(dead, "publish", publish_late)
    row = carried_out(batch)
    assert (row.state, row.owner) == (WorkState.RUNNING, "another")
    assert states(batch) == ["done", "pending"]


def test_an_unreachable_broker_is_asked_again_later(user: User, broker: Broker) -> None:
    batch = started(user, broker, [b"1"])
    row = carried_out(batch)
    assert row.state == WorkState.WAITING
    assert "No management API" in row.error
    assert states(batch) == ["pending"]
