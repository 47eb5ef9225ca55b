"""Publishing in a pipeline, and moving out of a queue, on real brokers."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost
from tests.builders import address_of, declare_in, eventually
from tests.faults.freezing import frozen
from tests.stopwatch import stopwatch
from tests.topology.numbers import Numbers
from topology.broker.amqp import pipeline as wiring
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.depths import live_depths
from topology.broker.amqp.frames import Delivery, heard_at, wait_for_any
from topology.broker.amqp.pipeline import Answer, pipeline, publisher
from topology.broker.errors import BrokerError, Conflict, NotFound, OutcomeUnknown
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Binding, Exchange, Queue
from topology.message import REPLAY_HEADER, Properties, Publish
from topology.transfer.move import QueueSource, move

CONFIRMED = Answer("confirmed")


def moved(
    source: Any,
    wire: Any,
    window: int = 10,
    is_stopping: Callable[[], bool] = lambda: False,
    **more: Any,
) -> None:
    move(source, wire, window=window, is_stopping=is_stopping, **more)


def depth(vhost: Vhost, queue: str) -> int:
    return live_depths(address_of(vhost), [queue])[queue]


def test_each_of_many_is_confirmed_and_there(vhost: Vhost) -> None:
    declare_in(vhost, Queue("q"))
    source = Numbers(5000)
    with pipeline(address_of(vhost), "test") as wire:
        moved(source, wire, 500)
    assert source.kinds() == {"confirmed": 5000}
    assert depth(vhost, "q") == 5000


def test_a_delivery_is_timed_when_it_came_and_not_when_it_was_read(vhost: Vhost) -> None:
    declare_in(vhost, Queue("q"))
    with Consumer(address_of(vhost), "q", in_thread=False) as consumer:
        with pipeline(address_of(vhost), "test") as wire:
            moved(Numbers(1), wire)
        wait_for_any([consumer.connection], 10)
        read_from = datetime.now(UTC)
        (delivery,) = consumer.batch(limit=1, wait=10)
        assert delivery.received_at < read_from


def test_a_connection_on_which_nothing_is_answered_counts_as_broken(
    vhost: Vhost, broker_node: PrivateNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before its silence ends it; while a node of a cluster is paused, 3.10 never answers."""
    monkeypatch.setattr(wiring, "LONGEST_SILENCE_SECONDS", 0.5)
    declare_in(vhost, Queue("q"))
    with pipeline(address_of(vhost), "test") as wire, frozen(broker_node):
        wire.publish(Publish("", "q"), 1)
        with stopwatch() as watch, pytest.raises(OutcomeUnknown, match="did not confirm"):
            eventually(lambda: wire.answers(0.1), "it is answered")
    assert watch.seconds < 5.0


def test_a_publisher_with_nothing_to_publish_keeps_its_connection(vhost: Vhost) -> None:
    """RabbitMQ cuts a connection that sends nothing for two heartbeats, and sends four itself."""
    declare_in(vhost, Queue("q"))
    with publisher(address_of(vhost), "test", heartbeat=1) as channel:
        heard: set[float] = set()

        def is_kept() -> bool:
            channel.keep_alive()
            heard.add(heard_at(channel._connection))
            return len(heard) > 6

        eventually(is_kept, "RabbitMQ sent heartbeats for longer")
        assert channel.publish(Publish("", "q")) == CONFIRMED


@pytest.mark.parametrize("size", [0, 1, 131_063, 131_064, 131_065, 1_000_000])
def test_a_body_of_any_size_arrives_as_it_was(vhost: Vhost, size: int) -> None:
    declare_in(vhost, Queue("q"))
    body = bytes(number % 251 for number in range(size))
    with pipeline(address_of(vhost), "test") as wire:
        moved(Numbers(2, lambda number: Publish("", "q", body=body)), wire)
    with Consumer(address_of(vhost), "q", prefetch=10, in_thread=False) as taking:
        come = taken(taking, 2)
        taking.ack([], through=come[-1].tag)
    assert [one.body for one in come] == [body, body]


def taken(taking: Consumer, number: int) -> list[Delivery]:
    come: list[Delivery] = []

    def is_all() -> bool:
        come.extend(taking.batch(limit=number, wait=0.2, linger=0))
        return len(come) >= number

    eventually(is_all, f"{number} messages came")
    return come


@pytest.mark.parametrize("in_thread", [True, False])
def test_a_channel_that_the_broker_closes_ends_its_consumer(vhost: Vhost, in_thread: bool) -> None:
    declare_in(vhost, Queue("q"))
    with Consumer(address_of(vhost), "q", in_thread=in_thread) as taking:
        taking.ack([17])
        with pytest.raises(Conflict, match="unknown delivery tag 17"):
            taking.batch(limit=1, wait=10)


@pytest.mark.parametrize("is_named", [True, False])
def test_what_is_returned_is_told_of_the_message_that_was(vhost: Vhost, is_named: bool) -> None:
    declare_in(vhost, Queue("q"))

    def publish(number: int) -> Publish:
        headers = {REPLAY_HEADER: f"name-{number}"} if is_named else {}
        body = b"same" if is_named else b"%d" % number
        return Publish("", "nowhere" if number % 3 else "q", build_properties(headers), body)

    source = Numbers(300, publish)
    with pipeline(address_of(vhost), "test") as wire:
        moved(source, wire, 100)
    source.kinds()
    for number, answer in source.settled:
        assert answer.kind == ("returned" if number % 3 else "confirmed")
        assert ("“nowhere”" in answer.error) == bool(number % 3)


@pytest.mark.parametrize("more", [{}, {"BCC": ["elsewhere"]}])
def test_of_equal_ones_that_differ_in_their_headers_the_right_one_is_returned(
    vhost: Vhost, more: dict[str, Any]
) -> None:
    declare_in(vhost, Queue("q"), Exchange("x", "headers"))
    with Management(address_of(vhost)) as management:
        matched = Arguments({"x-match": "all", "kind": "good"})
        management.bind(Binding("x", "q", "", arguments=matched))

    def publish(number: int) -> Publish:
        kind = "bad" if number % 3 else "good"
        return Publish("x", "same", build_properties({"kind": kind, **more}), b"same")

    source = Numbers(300, publish)
    with pipeline(address_of(vhost), "test") as wire:
        moved(source, wire, 100)
    source.kinds()
    for number, answer in source.settled:
        assert (answer.kind, answer.again) == ("returned" if number % 3 else "confirmed", False)
    assert depth(vhost, "q") == 100


def test_what_is_returned_unlike_all_that_is_on_the_way_leaves_none_confirmed_that_was_not(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the broker had changed what it gives back."""
    monkeypatch.setattr(wiring, "match_returned", lambda raw, body: lambda publish: False)
    declare_in(vhost, Queue("q"))

    def publish(number: int) -> Publish:
        return Publish("", "q" if number % 3 else "nowhere", body=b"%d" % number)

    source = Numbers(60, publish)
    with pipeline(address_of(vhost), "test") as wire:
        moved(source, wire, 20)
    source.kinds()
    for number, answer in source.settled:
        assert answer.kind == ("confirmed" if number % 3 else "returned")
    assert depth(vhost, "q") == 40


def test_what_a_full_queue_refuses_is_told_of(vhost: Vhost) -> None:
    full = Arguments({"x-max-length": 5, "x-overflow": "reject-publish"})
    declare_in(vhost, Queue("q", arguments=full))
    source = Numbers(200)
    with pipeline(address_of(vhost), "test") as wire:
        moved(source, wire, 50)
    kinds = source.kinds()
    assert kinds["confirmed"] == depth(vhost, "q")
    assert kinds["confirmed"] + kinds["nacked"] == 200
    assert kinds["nacked"] > 0


def test_one_bad_one_among_many_closes_the_channel_and_no_other_fails(vhost: Vhost) -> None:
    declare_in(vhost, Queue("q"))

    def publish(number: int) -> Publish:
        return Publish("none" if number == 50 else "", "q", body=b"%d" % number)

    source = Numbers(200, publish)
    with pipeline(address_of(vhost), "test") as wire:
        moved(source, wire, 100)
    assert source.kinds() == {"confirmed": 199, "failed": 1}
    (failed,) = (one for one in source.settled if one[1].kind == "failed")
    assert failed[0] == 50
    assert "exchange “none” does not exist" in failed[1].error
    twice = sum(answer.again for _, answer in source.settled)
    assert 200 <= depth(vhost, "q") + 1 <= 200 + twice


def test_an_exchange_deleted_in_the_middle_leaves_each_with_an_answer(vhost: Vhost) -> None:
    declare_in(vhost, Queue("q"), Exchange("x", "fanout"))
    with Management(address_of(vhost)) as management:
        management.bind(Binding("x", "q", ""))

        def publish(number: int) -> Publish:
            if number == 150:
                management.delete_exchange("x")
            return Publish("x", "", body=b"%d" % number)

        source = Numbers(300, publish)
        with pipeline(address_of(vhost), "test") as wire:
            moved(source, wire, 100)
    kinds = source.kinds()
    assert set(kinds) == {"confirmed", "failed"}
    assert kinds["failed"] >= 150
    sure = {number for number, answer in source.settled if answer == CONFIRMED}
    assert len(sure) <= depth(vhost, "q")


@pytest.mark.parametrize(
    ("publish", "said"),
    [
        (Publish("", "x" * 256), "more than 255 bytes"),
        (Publish("", "\ud800"), "not valid Unicode"),
        (Publish("", "q", Properties(raw=b"\x00\x00" + b"x" * 200_000)), "one AMQP frame"),
    ],
)
def test_what_amqp_cannot_carry_fails_and_breaks_nothing(
    vhost: Vhost, publish: Publish, said: str
) -> None:
    declare_in(vhost, Queue("q"))
    source = Numbers(3, lambda number: publish if number == 1 else Publish("", "q"))
    with pipeline(address_of(vhost), "test") as wire:
        moved(source, wire)
    answers = dict(source.settled)
    assert (answers[0], answers[2]) == (CONFIRMED, CONFIRMED)
    assert answers[1].kind == "failed"
    assert said in answers[1].error


def test_a_connection_that_is_cut_ends_it_with_what_was_answered_settled(vhost: Vhost) -> None:
    declare_in(vhost, Queue("q"))
    with pipeline(address_of(vhost), "test") as wire:

        def publish(number: int) -> Publish:
            if number == 2500:
                cut(wire._connection)
            return Publish("", "q", body=b"%d" % number)

        source = Numbers(10_000, publish)
        with pytest.raises(BrokerError):
            moved(source, wire, 500)
    assert set(source.kinds()) == {"confirmed"}
    assert len(source.settled) <= depth(vhost, "q") <= source.given < 10_000


def cut(connection: Any) -> None:
    """As a network does it."""
    connection._impl._transport._sock.shutdown(socket.SHUT_RDWR)


class Way:
    """From the queue “from” to “to”, through whatever `decide` says; counts what it is told."""

    def __init__(self, taking: Consumer, **more: Any) -> None:
        self.kinds: Counter[str] = Counter()
        self.decided = 0
        self.source = QueueSource(taking, self.decide, self.settled, prefetch=100, **more)

    def decide(self, arrival: Delivery) -> tuple[Publish, int] | None:
        self.decided += 1
        number = int(arrival.body)
        if number % 10 == 9:
            return None
        queue = "nowhere" if number % 10 == 8 else "to"
        return Publish("", queue, arrival.message.properties, arrival.body), number

    def settled(self, number: int, answer: Answer) -> None:
        self.kinds[answer.kind] += 1


def fill(vhost: Vhost, number: int) -> None:
    declare_in(vhost, Queue("from"), Queue("to"))
    with pipeline(address_of(vhost), "test") as wire:
        moved(Numbers(number, lambda n: Publish("", "from", body=b"%d" % n)), wire, 500)


def test_of_a_queue_what_is_refused_or_unwanted_stays_and_comes_once(vhost: Vhost) -> None:
    fill(vhost, 1000)
    with (
        pipeline(address_of(vhost), "test") as wire,
        Consumer(address_of(vhost), "from", prefetch=100, in_thread=False) as taking,
    ):
        way = Way(taking)

        def is_stopping() -> bool:
            return way.decided == 1000 and not way.source.unsettled

        moved(way.source, wire, 50, is_stopping, idle_seconds=0.0)
    assert way.kinds == {"confirmed": 800, "returned": 100}
    assert (depth(vhost, "from"), depth(vhost, "to")) == (200, 800)


def test_of_a_queue_the_first_that_is_refused_can_end_it(vhost: Vhost) -> None:
    fill(vhost, 200)
    with (
        pipeline(address_of(vhost), "test") as wire,
        Consumer(address_of(vhost), "from", prefetch=100, in_thread=False) as taking,
    ):
        way = Way(taking, is_strict=True)
        moved(way.source, wire, 50, idle_seconds=0.0)
    assert way.source.refusal is not None
    assert way.source.refusal.kind == "returned"
    assert depth(vhost, "from") + depth(vhost, "to") == 200
    assert depth(vhost, "to") == way.kinds["confirmed"] < 100


def test_of_a_queue_whose_consumer_is_cut_nothing_is_lost(vhost: Vhost) -> None:
    fill(vhost, 2000)

    def until_it_is_cut() -> None:
        with (
            pipeline(address_of(vhost), "test") as wire,
            Consumer(address_of(vhost), "from", prefetch=100, in_thread=False) as taking,
        ):
            way = Way(taking)

            def turn() -> None:
                if way.kinds["confirmed"] > 500:
                    cut(taking.connection)

            moved(way.source, wire, 50, idle_seconds=0.0, turn=turn)

    with pytest.raises(BrokerError):
        until_it_is_cut()
    eventually(lambda: depth(vhost, "from") + depth(vhost, "to") >= 2000, "all are somewhere")
    assert depth(vhost, "from") + depth(vhost, "to") <= 2100


def test_a_queue_that_is_deleted_is_told_of(vhost: Vhost) -> None:
    fill(vhost, 10)

    def until_it_is_deleted() -> None:
        with (
            pipeline(address_of(vhost), "test") as wire,
            Consumer(address_of(vhost), "from", prefetch=100, in_thread=False) as taking,
            Management(address_of(vhost)) as management,
        ):
            way = Way(taking)

            def turn() -> None:
                if way.kinds.pop("confirmed", 0):
                    management.delete_queue("from", only_if_empty=False)

            moved(way.source, wire, 50, idle_seconds=0.0, turn=turn)

    with pytest.raises(NotFound, match="was deleted"):
        until_it_is_deleted()
