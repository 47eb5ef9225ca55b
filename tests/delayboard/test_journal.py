"""The items of a replay as the journal of the move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import User

from analytics.facts import oldest
from delayboard.dead_letters.replay import batch as batches
from delayboard.dead_letters.replay.send import ItemJournal
from delayboard.dead_letters.replay.verdict import Target
from delayboard.models import ItemState, ReplayBatch
from tests.delayboard.builders import (
    TAP,
    TAPPED,
    a_death,
    a_message,
    deaths_header,
    frozen,
    letters,
    started,
    states,
)
from topology.broker.errors import (
    BrokerError,
    Conflict,
    Nacked,
    Returned,
)
from topology.broker.properties import edit_properties, read_properties
from topology.definitions import Binding, Definitions, Exchange
from topology.message import (
    REPLAY_HEADER,
    REPLAYS_HEADER,
    Message,
    Publish,
    content_id,
    kept_by_streams,
)
from topology.models import Broker
from topology.provisioning.taps import tapped_exchanges

pytestmark = pytest.mark.django_db


def journal_of(batch: ReplayBatch) -> ItemJournal:
    nobody: Any = None
    return ItemJournal(batch, nobody)


@pytest.mark.usefixtures("there")
def test_equal_messages_are_counted_and_each_is_taken_once(user: User, broker: Broker) -> None:
    batch = started(user, broker, [b"same", b"same", b"other"])
    journal = journal_of(batch)
    taken = [journal.decide(a_message(body)) for body in (b"same", b"same", b"same")]
    assert [step is not None for step in taken] == [True, True, False]
    assert taken[0] is not None
    assert taken[1] is not None
    assert taken[0].key != taken[1].key
    assert (journal.settled, journal.total, journal.is_complete()) == (2, 3, False)
    assert journal.decide(a_message(b"other", headers={})) is not None
    assert journal.is_complete()


@pytest.mark.usefixtures("there")
def test_a_message_goes_back_without_its_deaths_and_with_our_count(
    user: User, broker: Broker
) -> None:
    headers = deaths_header(a_death()) | {REPLAYS_HEADER: 4, "CC": ["x"], "own": 1}
    batch = frozen(user, broker, letters(a_message(headers=headers, user_id="ann")))
    batches.start(user, batch, despite_verdict=False)
    step = journal_of(batch).decide(a_message(headers=headers, user_id="ann"))
    assert step is not None
    assert step.publish is not None
    item = batch.items.get()
    assert (step.publish.exchange, step.publish.routing_key) == ("orders", "orders")
    assert step.publish.properties.headers == {
        "own": 1,
        REPLAY_HEADER: str(item.replay_id),
        REPLAYS_HEADER: 5,
    }
    assert step.publish.properties.user_id is None


@pytest.mark.parametrize("before", [True, "3", None])
@pytest.mark.usefixtures("there")
def test_a_count_that_is_none_begins_at_one(user: User, broker: Broker, before: Any) -> None:
    batch = started(user, broker, [b"1"])
    step = journal_of(batch).decide(a_message(b"1", headers={REPLAYS_HEADER: before}))
    assert step is not None
    assert step.publish is not None
    assert step.publish.properties.headers[REPLAYS_HEADER] == 1


@pytest.mark.usefixtures("there")
def test_what_a_crash_left_is_taken_up_where_it_stood(user: User, broker: Broker) -> None:
    batch = started(user, broker, [b"1", b"2", b"3"])
    for position, state in (
        (1, ItemState.CONFIRMED),
        (2, ItemState.PUBLISHING),
        (3, ItemState.DONE),
    ):
        batch.items.filter(position=position).update(state=state)
    journal = journal_of(batch)
    assert journal.settled == 1
    for body in (b"1", b"2"):
        step = journal.decide(a_message(body))
        assert step is not None
        assert step.publish.body == body
    assert journal.decide(a_message(b"3")) is None
    assert list(batch.items.values_list("may_be_duplicated", flat=True)) == [True, True, False]


@pytest.mark.usefixtures("there")
def test_a_copy_that_the_batch_itself_sent_is_never_taken(user: User, broker: Broker) -> None:
    batch = started(user, broker, [b"1"])
    batch.items.update(state=ItemState.CONFIRMED)
    sent = str(batch.items.get().replay_id)
    original = a_message(b"1")
    properties = edit_properties(original.properties, set_headers={REPLAY_HEADER: sent})
    copy = replace(original, properties=properties)
    assert copy.content_id == original.content_id
    assert journal_of(batch).decide(copy) is None


@pytest.mark.usefixtures("there")
def test_a_message_that_breaks_the_connection_again_and_again_is_given_up(
    user: User, broker: Broker
) -> None:
    batch = started(user, broker, [b"1"])
    for _ in range(3):
        journal = journal_of(batch)
        step = journal.decide(a_message(b"1"))
        assert step is not None
        journal.publishing(step.key)
    assert journal_of(batch).decide(a_message(b"1")) is None
    item = batch.items.get()
    assert (item.state, item.may_be_duplicated) == (ItemState.FAILED, True)
    assert "broke 3 times" in item.error


@pytest.mark.usefixtures("there")
def test_every_step_is_one_commit_and_the_confirm_states_a_fact(user: User, broker: Broker) -> None:
    batch = started(user, broker, [b"1"])
    journal = journal_of(batch)
    step = journal.decide(a_message(b"1"))
    assert step is not None
    journal.publishing(step.key)
    assert states(batch) == ["publishing"]
    journal.confirmed(step.key)
    assert states(batch) == ["confirmed"]
    ((_, fact),) = oldest(10)
    item = batch.items.get()
    assert (fact.kind, fact.replay_id, fact.exchange) == ("replayed", str(item.replay_id), "orders")
    sent = a_message(b"1")
    logged = content_id(kept_by_streams(sent.properties), sent.body)
    assert (fact.queue, fact.content_id) == ("dead", logged)
    journal.done(step.key)
    item.refresh_from_db()
    assert (item.state, item.error, item.ended_at is not None) == ("done", "", True)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (Returned("no queue"), "returned"),
        (Nacked("full"), "nacked"),
        (Conflict("user_id"), "failed"),
    ],
)
@pytest.mark.usefixtures("there")
def test_a_refusal_ends_the_item_with_its_reason(
    user: User, broker: Broker, error: BrokerError, state: str
) -> None:
    batch = started(user, broker, [b"1"])
    journal = journal_of(batch)
    step = journal.decide(a_message(b"1"))
    assert step is not None
    journal.refused(step.key, error)
    item = batch.items.get()
    assert (item.state, item.error) == (state, str(error))
    assert not oldest(10)


@pytest.mark.usefixtures("there")
def test_properties_that_cannot_be_taken_apart_fail_the_item_and_leave_the_message(
    user: User, broker: Broker
) -> None:
    broken = Message("", "dead", read_properties(b"\x20\x00\x00\x00\x00\x03\x01aQ"), b"1")
    batch = frozen(user, broker, letters(broken), Target("orders", "orders", "typed"))
    batches.start(user, batch, despite_verdict=False)
    assert journal_of(batch).decide(broken) is None
    item = batch.items.get()
    assert item.state == "failed"
    assert "cannot be edited: unknown field type" in item.error


def test_a_confirm_that_only_a_tap_gave_is_a_return(
    user: User, broker: Broker, there: dict[str, Definitions]
) -> None:
    journal = journal_of(started(user, broker, [b"1"]))
    journal.check(Publish("orders", "orders"))
    with pytest.raises(Returned, match="No queue but Delayboard's own tap took it"):
        journal.check(Publish("orders", "only-tapped"))
    there["now"] = TAPPED.without([("queue", "orders")])
    with pytest.raises(Returned):
        journal.check(Publish("orders", "orders"))
    journal.check(Publish("news", "unknown to any tap"))


def test_an_exchange_in_front_of_a_tapped_one_is_tapped_too() -> None:
    chain = Definitions.of(
        [
            Exchange("a"),
            Exchange("b"),
            Exchange("c"),
            Binding("a", "b", "", False),
            Binding("b", "a", "", False),
            Binding("b", TAP, ""),
            Binding("c", "q", ""),
        ]
    )
    assert tapped_exchanges(chain) == {"a", "b"}
    assert tapped_exchanges(Definitions()) == frozenset()
