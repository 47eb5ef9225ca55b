"""Freezing, starting and cancelling replays."""

from __future__ import annotations

import threading

import pytest
from django.contrib.auth.models import User
from django.db import connection

from delayboard.dead_letters.replay import batch as batches
from delayboard.dead_letters.replay.batch import BatchError, chosen, freeze
from delayboard.dead_letters.replay.verdict import Target
from delayboard.models import ItemState, ReplayBatch
from tests.builders import make_pair
from tests.delayboard.builders import (
    a_death,
    a_message,
    deaths_header,
    frozen,
    letters,
    some_letters,
    started,
    states,
)
from tests.topology.builders import a_queue, a_snapshot
from topology import work
from topology.definitions import Definitions
from topology.models import AuditEntry, Broker, State, Work

pytestmark = pytest.mark.django_db


def test_a_batch_freezes_each_letter_with_its_target_and_verdict(
    user: User, broker: Broker
) -> None:
    batch = frozen(user, broker, letters(a_message(b"12", message_id="m1"), a_message(b"3")))
    one, two = batch.items.all()
    assert (one.position, one.message_id, one.size) == (1, "m1", 2)
    assert (one.target_exchange, one.target_key) == ("orders", "orders")
    assert (one.verdict, one.verdict_is_good) == ("Arrives in orders at once.", True)
    assert one.replay_id != two.replay_id
    assert batch.is_draft
    assert not batch.is_ended
    assert batch.counts()["pending"] == sum(batch.counts().values()) == 2
    assert (AuditEntry.objects.get().action, batch.created_by) == ("replay prepared", user)


def test_a_typed_target_is_taken_for_all(user: User, broker: Broker) -> None:
    typed = Target("", "dead", "typed")
    item = frozen(user, broker, some_letters([b"1"]), typed).items.get()
    assert (item.target_exchange, item.target_key, item.target_why) == ("", "dead", "typed")
    assert not item.verdict_is_good
    assert item.verdict.startswith("It loops back into dead.")


def test_no_letter_or_one_that_came_from_nowhere_makes_no_batch(user: User, broker: Broker) -> None:
    with pytest.raises(BatchError, match="No message was chosen"):
        frozen(user, broker, ())
    stranger = letters(a_message(b"1"), a_message(b"2", headers={}))
    with pytest.raises(BatchError, match=r"Message 2 has no death .* type the exchange and key"):
        frozen(user, broker, stranger)
    assert not ReplayBatch.objects.exists()


def test_a_delay_of_an_applied_topology_is_no_target(user: User, broker: Broker) -> None:
    topology = make_pair(broker)
    assert batches.delay_queues(broker) == {"orders-retry"}
    there = a_snapshot(topology.definitions | Definitions.of([a_queue("dead")]))
    expired = a_death("orders-retry", "expired", exchange="orders-retry")
    found = letters(a_message(headers=deaths_header(expired)))
    with pytest.raises(BatchError):
        freeze(user, broker, "dead", found, there)
    topology.state = State.TORN_DOWN
    topology.save()
    item = freeze(user, broker, "dead", found, there).items.get()
    assert item.target_exchange == "orders-retry"


def test_a_message_id_that_no_database_can_hold_is_shown_escaped(
    user: User, broker: Broker
) -> None:
    item = frozen(user, broker, letters(a_message(message_id="a\x00b"))).items.get()
    assert item.message_id == "a\\x00b"


def test_the_chosen_are_those_whose_handles_were_sent() -> None:
    found = some_letters([b"1", b"1", b"2"])
    assert chosen(found, [found[1].handle, found[2].handle, "gone.1"]) == list(found[1:])


def test_a_draft_is_started_once(user: User, broker: Broker) -> None:
    batch = started(user, broker, [b"1", b"2"])
    assert batch.work is not None
    assert (batch.work.kind, batch.work.subject, batch.work.total) == ("replay", batch.pk, 2)
    assert not batch.is_draft
    with pytest.raises(BatchError, match="started already"):
        batches.start(user, batch, despite_verdict=False)
    assert Work.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_of_two_starts_at_once_one_is_refused(user: User, broker: Broker) -> None:
    batch = frozen(user, broker, some_letters([b"1"]))
    barrier = threading.Barrier(2)
    refused: list[str] = []

    def start() -> None:
        try:
            barrier.wait(10)
            batches.start(user, ReplayBatch.objects.get(), despite_verdict=False)
        except BatchError as error:
            refused.append(str(error))
        finally:
            connection.close()

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert (Work.objects.count(), refused) == (1, ["This replay was started already."])
    assert batch.items.count() == 1


def test_a_bad_verdict_needs_a_yes(user: User, broker: Broker) -> None:
    batch = frozen(user, broker, some_letters([b"1"]), Target("gone", "", ""))
    with pytest.raises(BatchError, match="1 messages have a bad verdict: type “yes”"):
        batches.start(user, batch, despite_verdict=False)
    batches.start(user, batch, despite_verdict=True)
    assert AuditEntry.objects.filter(action="replay started").get().details["bad_verdicts"] == 1


def test_only_what_runs_is_cancelled_and_what_waits_at_once(user: User, broker: Broker) -> None:
    draft = frozen(user, broker, some_letters([b"1"]))
    with pytest.raises(BatchError, match="not running"):
        batches.cancel(user, draft)
    batch = started(user, broker, [b"1", b"2"])
    batches.cancel(user, batch)
    assert states(batch) == ["cancelled", "cancelled"]
    assert batch.is_ended
    with pytest.raises(BatchError, match="not running"):
        batches.cancel(user, batch)


def test_an_item_whose_publish_is_unsettled_is_cancelled_and_says_so(
    user: User, broker: Broker
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    batch.items.filter(position=1).update(state=ItemState.PUBLISHING)
    batches.cancel(user, batch)
    one, two = batch.items.all()
    assert (one.state, one.may_be_duplicated) == ("cancelled", True)
    assert "may have been published" in one.error
    assert (two.state, two.may_be_duplicated, two.error) == ("cancelled", False, "")


def test_a_running_one_is_only_asked_to_stop(user: User, broker: Broker) -> None:
    batch = started(user, broker, [b"1"])
    work.claim(("replay",), "worker")
    batch.refresh_from_db()
    batches.cancel(user, batch)
    assert Work.objects.get().cancel_wanted
    assert states(batch) == ["pending"]
