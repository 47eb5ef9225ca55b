"""A whole replay, into a broker in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from analytics.facts import oldest
from delayboard.dead_letters.replay import batch_state, parked_source
from delayboard.models import (
    BatchState,
    MessageGroup,
    ParkedMessage,
    ParkedState,
    ReplayBatch,
    ReplayEdit,
    ReplayOutcome,
)
from tests.delayboard.builders import (
    TAPPED,
    a_message,
    a_route,
    frozen,
    parked,
    started,
    states,
)
from tests.delayboard.carrying import (
    RETURNED,
    adds_up,
    carried,
    changed,
    errors,
    parked_message_states,
)
from tests.delayboard.pipes import Pipes
from topology.broker.amqp.pipeline import Answer
from topology.broker.properties.read import build_properties
from topology.definitions import Definitions
from topology.message import DEATH_HEADERS, REPLAYS_HEADER, Properties
from topology.models import Broker, WorkState

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]


def test_every_parked_message_is_sent_and_that_is_written_down(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1", b"2", b"3"])
    ended = carried(batch)
    assert (ended.state, ended.done, ended.total) == (WorkState.DONE, 3, 3)
    assert (batch.state, states(batch)) == (BatchState.DONE, ["done"] * 3)
    assert parked_message_states(batch) == ["replayed"] * 3
    assert pipes.bodies == [b"1", b"2", b"3"]
    assert pipes.names == [item.replay_id for item in batch.items.all()]
    published = pipes.published[0]
    assert (published.exchange, published.routing_key) == ("orders", "orders")
    assert published.properties.message_id == "1"
    assert not DEATH_HEADERS & set(published.properties.headers)
    assert published.properties.headers[REPLAYS_HEADER] == 1


def test_each_is_a_fact_with_its_replay(user: User, broker: Broker, pipes: Pipes) -> None:
    batch = started(user, broker, [b"1", b"2"])
    carried(batch)
    events = [event for _, event in oldest(10)]
    reported = [event for event in events if event.kind == "replayed"]
    assert [event.replay_id for event in reported] == pipes.names
    assert [(e.exchange, e.routing_key, e.queue) for e in reported] == [
        ("orders", "orders", "dead")
    ] * 2
    assert [e.content_id for e in reported] == [
        parked_message.content_id for parked_message in ParkedMessage.objects.order_by("pk")
    ]


def test_the_number_of_replays_is_counted_in_the_message(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    reported: list[Any] = [2, "x", True, -5]
    found = parked(broker, *[a_message(b"1", {REPLAYS_HEADER: number}) for number in reported])
    batch = frozen(user, broker, found)
    batch_state.start(user, batch, despite_verdict=False)
    carried(batch)
    assert [p.properties.headers[REPLAYS_HEADER] for p in pipes.published] == [3, 1, 1, 1]


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("returned", "returned"),
        ("refused", "failed"),
        ("failed", "failed"),
        ("nacked", "unknown"),
    ],
)
def test_what_is_not_confirmed_is_parked_again_with_the_reason(
    user: User, broker: Broker, pipes: Pipes, kind: Any, state: str
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    pipes.decide = lambda p: Answer(kind, "no") if p.body == b"1" else Answer("confirmed")
    carried(batch)
    assert (batch.state, states(batch)) == (BatchState.DONE, [state, "done"])
    assert parked_message_states(batch) == ["parked", "replayed"]
    assert errors(batch) == ["no", ""]


def test_what_is_given_to_a_delay_is_handed_and_can_be_replayed_again(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1"], a_route("orders", "orders", after_ms=5000))
    carried(batch)
    item = batch.items.get()
    assert (item.state, item.outcome) == ("done", ReplayOutcome.DELAYED)
    assert parked_message_states(batch) == ["delayed"]
    again = frozen(user, broker, list(ParkedMessage.objects.all()), undo_seconds=60)
    batch_state.start(user, again, despite_verdict=False)
    assert parked_message_states(again) == ["replaying"]
    batch_state.cancel(user, again)
    assert parked_message_states(again) == ["delayed"]
    again.refresh_from_db()
    adds_up(again)


@pytest.mark.parametrize("outcome", [ReplayOutcome.DELIVERED, ReplayOutcome.DIED])
@pytest.mark.parametrize("is_cancelled", [True, False])
def test_what_arrived_of_another_replay_meanwhile_is_not_parked_again(
    user: User, broker: Broker, pipes: Pipes, outcome: ReplayOutcome, is_cancelled: bool
) -> None:
    batch = started(user, broker, [b"1"], a_route("orders", "orders", after_ms=5000))
    carried(batch)
    again = frozen(user, broker, list(ParkedMessage.objects.all()), undo_seconds=60)
    batch_state.start(user, again, despite_verdict=False)
    batch.items.update(outcome=outcome)
    if is_cancelled:
        batch_state.cancel(user, again)
    else:
        changed(ReplayBatch, publish_at=timezone.now())
        pipes.decide = lambda p: RETURNED
        carried(again)
    again.refresh_from_db()
    adds_up(again)
    assert parked_message_states(again) == ["replayed"]


def test_what_was_answered_twice_is_marked(user: User, broker: Broker, pipes: Pipes) -> None:
    batch = started(user, broker, [b"1", b"2"])
    pipes.decide = lambda p: Answer("confirmed", again=p.body == b"2")
    carried(batch)
    assert list(batch.items.values_list("may_be_duplicated", flat=True)) == [False, True]
    assert batch.doubled == 1


def test_a_confirm_of_the_tap_alone_is_none(
    user: User, broker: Broker, pipes: Pipes, there: dict[str, Definitions]
) -> None:
    there["now"] = TAPPED
    batch = started(
        user, broker, [b"1", b"2"], a_route("orders", "only-tapped"), a_route("", "orders")
    )
    carried(batch)
    assert states(batch) == ["returned", "done"]
    assert "No queue but a tap of Delayboard receives the message" in errors(batch)[0]
    assert parked_message_states(batch) == ["parked", "replayed"]


def test_what_cannot_be_taken_apart_fails_and_is_parked(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    ParkedMessage.objects.filter(message_id="1").update(properties=b"\x20\x00\x00\x00\x00\x09\x01")
    carried(batch)
    assert states(batch) == ["failed", "done"]
    assert errors(batch)[0].startswith("Its properties cannot be edited")
    assert parked_message_states(batch) == ["parked", "replayed"]


def test_a_route_that_the_dry_run_refused_is_not_sent(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    bad = a_route("", "", ending="refused", verdict="It cannot be.", is_good=False)
    batch = started(user, broker, [b"1"], bad)
    carried(batch)
    assert (states(batch), errors(batch), pipes.published) == (["failed"], ["It cannot be."], [])


def test_an_edit_is_sent_and_the_parked_message_stays(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    batch = started(user, broker, [b"1", b"2"])
    item, other = batch.items.all()
    assert item.parked_message is not None
    assert other.parked_message is not None
    stated = build_properties({"fixed": True}, message_id="edited").raw
    ReplayEdit.objects.create(
        item=item, properties=stated, body=other.parked_message.body, edited_at=timezone.now()
    )
    carried(batch)
    first = pipes.published[0]
    assert (first.body, first.properties.message_id) == (b"2", "edited")
    assert first.properties.headers["fixed"] is True
    item.parked_message.refresh_from_db()
    assert (item.parked_message.message.body, item.parked_message.state) == (
        b"1",
        ParkedState.REPLAYED,
    )


def test_a_parked_message_that_was_deleted_fails(user: User, broker: Broker, pipes: Pipes) -> None:
    """It is counted beside one that fails at the same time for another reason."""
    batch = started(user, broker, [b"1", b"2", b"3"])
    MessageGroup.objects.update(replaying=2)
    ParkedMessage.objects.filter(message_id="1").delete()
    ParkedMessage.objects.filter(message_id="3").update(properties=b"\x20\x00\x00\x00\x00\x09\x01")
    carried(batch)
    assert (states(batch), errors(batch)[0]) == (
        ["failed", "done", "failed"],
        parked_source.DELETED,
    )
    assert (batch.done, batch.failed) == (1, 2)


def test_the_headers_of_a_fact_are_those_of_the_parked_message(
    user: User, broker: Broker, pipes: Pipes
) -> None:
    carried(started(user, broker, [b"1"]))
    (event,) = [event for _, event in oldest(10) if event.kind == "replayed"]
    assert "x-death" in json.loads(event.headers_json)
    assert isinstance(pipes.published[0].properties, Properties)
