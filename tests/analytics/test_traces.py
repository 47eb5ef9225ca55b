from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from analytics.recorder.copies import content_of
from analytics.recorder.traces import (
    Trace,
    Watched,
    event_of_trace,
    find_failure_queues,
    is_own,
    read_trace,
)
from tests.analytics.builders import NOON
from topology.message import Message, Properties
from topology.patterns.delay_queues import params as delay_queues_params
from topology.patterns.hold_queues import params as hold_queues_params
from topology.patterns.retry_pair.pattern import retry_pair
from topology.patterns.table import PATTERNS

SECOND = timedelta(seconds=1)
HOLDS = Watched(
    "holds",
    PATTERNS["hold_queues"],
    hold_queues_params.Params("", ("orders",)),
    frozenset({"entry", "exit"}),
)
HELD = "delay.5000..orders"
DEATH = {
    "count": 1,
    "reason": "expired",
    "queue": HELD,
    "exchange": "",
    "routing-keys": [HELD],
}
EXPIRED = {"x-death": [DEATH]}


def a_copy(key: str, *, read_again: bool = False, **reported: Any) -> Message:
    """A copy as RabbitMQ makes it (tried on 3.10.8, 4.0.5 and 4.3.6)."""
    headers = {
        "exchange_name": "",
        "routing_keys": [HELD],
        "properties": {"delivery_mode": 2, "message_id": "m1", "headers": {"a": 1}},
        "node": "rabbit@host",
        "vhost": "/",
        "connection": "10.0.0.7:60358 -> 10.0.0.1:5672",
        "channel": 1,
        "user": "shop",
    }
    headers |= reported
    return Message("amq.rabbitmq.trace", key, Properties(headers=headers), b"hi", read_again)


def a_publish(**reported: Any) -> Message:
    return a_copy("publish.", **{"routed_queues": [HELD]} | reported)


def a_delivery(headers: dict[str, Any], *, again: int = 0, **properties: Any) -> Message:
    stated = {"headers": headers, **properties}
    return a_copy("deliver.orders", routing_keys=["orders"], properties=stated, redelivered=again)


def a_trace(copy: Message) -> Trace:
    trace = read_trace(copy)
    assert trace is not None
    return trace


def reported(copy: Message, *watched: Watched, keeps_deaths: bool = False) -> Any:
    return event_of_trace(
        a_trace(copy),
        watched,
        broker="main",
        vhost="/",
        event_id="e",
        recorded_at=NOON,
        caught_up=True,
        keeps_deaths=keeps_deaths,
    )


def test_the_original_message_is_put_together_again() -> None:
    properties = {
        "content_type": "text/plain",
        "timestamp": 1_700_000_000,
        "priority": 3,
        "expiration": "500",
        "app_id": b"\xff",
        "headers": {"n": 2**40, "l": [1, {"b": True}]},
    }
    trace = a_trace(
        a_publish(exchange_name="shop", routing_keys=["k", "cc"], properties=properties)
    )
    assert trace.message == Message(
        "shop",
        "k",
        Properties(
            content_type="text/plain",
            timestamp=1_700_000_000,
            priority=3,
            expiration="500",
            app_id="\\xff",
            headers={"n": 2**40, "l": [1, {"b": True}]},
        ),
        b"hi",
    )
    assert (trace.is_delivery, trace.queue, trace.routed) == (False, "", (HELD,))


@pytest.mark.parametrize(
    "copy",
    [
        a_copy("publish"),
        a_copy("other.x"),
        a_copy("publish.", routing_keys=[]),
        a_copy("publish.", routing_keys=5),
        a_copy("publish.", properties="none"),
        replace(a_copy("deliver.q"), properties=Properties()),
    ],
)
def test_what_is_no_copy_of_the_firehose_is_none(copy: Message) -> None:
    assert read_trace(copy) is None


def test_the_reading_of_our_own_taps_is_known() -> None:
    assert is_own(a_copy("deliver.delayboard.tap.orders"))
    assert not is_own(a_copy("deliver.orders"))
    routed = ["delayboard.tap.orders", "orders"]
    assert a_trace(a_publish(routed_queues=routed)).routed == ("orders",)


def test_a_publish_into_a_hold_queue_is_scheduled() -> None:
    event = reported(a_publish(), HOLDS)
    assert (event.kind, event.source, event.topology) == ("scheduled", "firehose", "holds")
    assert (event.due_at, event.requested_delay_ms) == (NOON + 5 * SECOND, 5000)
    assert (event.queue, event.destination, event.attempt) == (HELD, "orders", 1)
    assert (event.published_by, event.published_at) == ("shop at 10.0.0.7", NOON)
    assert (event.message_id, event.headers_json) == ("m1", '{"a":1}')


def test_the_queues_of_a_publish_after_a_failure_elsewhere_are_found() -> None:
    def reached(**death: object) -> tuple[str, ...]:
        copy = a_publish(
            routed_queues=["orders", "given up"],
            properties={"headers": {"x-death": [DEATH | death]}},
        )
        return find_failure_queues(a_trace(copy))

    assert reached(reason="rejected", queue="orders") == ("given up",)
    assert reached() == ()
    assert find_failure_queues(a_trace(a_publish())) == ()
    failed = {"x-death": [DEATH | {"reason": "rejected"}]}
    assert find_failure_queues(a_trace(a_delivery(failed))) == ()


def test_a_publish_that_reached_no_queue_waits_nowhere() -> None:
    for routed in ([], ["delayboard.tap.x"], None):
        event = reported(a_publish(routed_queues=routed), HOLDS)
        assert (event.kind, event.topology, event.queue) == ("published", "", "")


def test_a_delivery_out_of_a_hold_queue_is_delivered_and_as_caught_up_as_its_recorder() -> None:
    event = reported(a_delivery(EXPIRED, message_id="m1"), HOLDS)
    assert (event.kind, event.topology, event.destination) == ("delivered", "holds", "orders")
    assert (event.death_queue, event.death_reason, event.deaths) == (HELD, "expired", 1)
    assert (event.attempt, event.caught_up, event.published_by) == (1, True, "")
    behind = event_of_trace(
        a_trace(a_delivery(EXPIRED)),
        [HOLDS],
        broker="main",
        vhost="/",
        event_id="e",
        recorded_at=NOON,
        caught_up=False,
        keeps_deaths=False,
    )
    assert not behind.caught_up


def test_a_delivery_is_no_publish_that_was_recorded() -> None:
    assert reported(a_delivery({}), HOLDS).published_at is None


def _delay_queues_of(queue: str) -> delay_queues_params.Params:
    return delay_queues_params.Params(queue, (SECOND,))


def test_what_passes_a_topology_without_a_delay_is_its_own_where_all_is_wanted() -> None:
    everything = replace(HOLDS, phases=frozenset({"entry", "exit", "publish"}))
    past = a_publish(routing_keys=["orders"], routed_queues=["orders"])
    event = reported(past, everything)
    assert (event.kind, event.topology, event.attempt) == ("published", "holds", 0)
    event = reported(a_delivery({}), everything)
    assert (event.kind, event.topology, event.attempt) == ("delivered", "holds", 0)
    assert (event.queue, event.requested_delay_ms) == ("orders", 0)
    assert reported(past, HOLDS).topology == ""
    other = a_publish(routing_keys=["bills"], routed_queues=["bills"])
    assert reported(other, everything).topology == ""
    free = replace(everything, params=hold_queues_params.Params("", ()))
    assert reported(past, free).topology == ""


def test_a_delay_of_one_topology_goes_before_what_passes_another() -> None:
    past = hold_queues_params.Params("", ("orders", HELD))
    other = Watched(
        "other", PATTERNS["delay_queues"], _delay_queues_of(HELD), frozenset({"entry", "publish"})
    )
    assert reported(a_publish(), other, replace(HOLDS, params=past)).topology == "holds"


def test_entry_and_exit_of_a_message_without_an_id_have_one_content() -> None:
    properties = {"delivery_mode": 2, "headers": {"a": 1, "b": [1]}}
    entry = a_trace(a_publish(properties=properties)).message
    exit_ = a_trace(a_delivery({**EXPIRED, "a": 1, "b": [1]}, delivery_mode=2)).message
    assert content_of(entry) == content_of(exit_)


@pytest.mark.parametrize(
    ("again", "properties", "deaths", "topology"),
    [
        (0, {}, [DEATH], "holds"),
        (1, {}, [DEATH], ""),
        (1, {"message_id": "m1"}, [DEATH], "holds"),
        (1, {}, [DEATH, {**DEATH, "queue": "orders", "reason": "rejected"}], "holds"),
    ],
)
def test_what_a_consumer_gave_back_leaves_once(
    again: int, properties: dict[str, Any], deaths: list[Any], topology: str
) -> None:
    event = reported(a_delivery({"x-death": deaths}, again=again, **properties), HOLDS)
    assert (event.topology, event.redelivered) == (topology, bool(again))


def test_a_copy_that_was_read_again_is_marked() -> None:
    assert reported(a_copy("publish.", routed_queues=[HELD], read_again=True), HOLDS).redelivered
    assert not reported(a_publish(), HOLDS).redelivered


def test_later_rounds_are_numbered_by_their_deaths() -> None:
    third = {"x-death": [{**DEATH, "count": 3}]}
    assert reported(a_delivery(third), HOLDS).attempt == 3
    properties = {"properties": {"headers": third}}
    assert reported(a_publish(**properties), HOLDS, keeps_deaths=True).attempt == 4
    assert reported(a_publish(**properties), HOLDS).attempt == 1


def test_what_a_tap_sees_is_of_no_topology() -> None:
    seen_by_tap = replace(HOLDS, phases=frozenset({"entry"}))
    event = reported(a_delivery(EXPIRED), seen_by_tap)
    assert (event.kind, event.topology, event.queue) == ("delivered", "", "orders")
    assert (event.death_queue, event.destination) == (HELD, "")
    assert reported(a_publish(), replace(HOLDS, phases=frozenset({"exit"}))).topology == ""
    assert reported(a_publish()).topology == ""


def test_only_a_publish_enters_and_only_a_delivery_leaves() -> None:
    from_hold = a_copy("deliver." + HELD, redelivered=0)
    assert reported(from_hold, HOLDS).topology == ""
    republished = a_publish(
        routing_keys=["orders"], routed_queues=["orders"], properties={"headers": EXPIRED}
    )
    assert reported(republished, HOLDS, keeps_deaths=True).topology == ""


def test_the_first_topology_that_knows_it_owns_it() -> None:
    pair = retry_pair.parse({"name": "orders", "delay": "5s"})
    other = Watched("pair", PATTERNS["retry_pair"], pair, frozenset({"entry", "exit"}))
    assert reported(a_publish(), other, HOLDS).topology == "holds"


@pytest.mark.parametrize("deaths", [5, [5], [{"count": "x"}], [{"queue": None}], "x"])
def test_headers_that_nobody_foresaw_stop_nothing(deaths: Any) -> None:
    hostile = {"x-death": deaths, "x-last-death-queue": 5, "\ud800": b"\xff"}
    for copy in (a_delivery(hostile), a_publish(properties={"headers": hostile})):
        assert reported(copy, HOLDS, keeps_deaths=True).source == "firehose"


@pytest.mark.parametrize(
    ("connection", "by"),
    [
        ("10.0.0.7:60358 -> 10.0.0.1:5672", "shop at 10.0.0.7"),
        ("[::1]:60358 -> [::1]:5672", "shop at [::1]"),
        ("<rabbit@host.1.2.3>", "shop"),
        (None, "shop"),
    ],
)
def test_who_published_is_the_user_and_the_host(connection: str | None, by: str) -> None:
    assert reported(a_publish(connection=connection), HOLDS).published_by == by


def test_a_body_is_kept_where_bodies_are_kept() -> None:
    keeping = replace(HOLDS, keep_bytes=2)
    assert reported(a_publish(), keeping).body_base64 == "aGk="
    assert reported(a_publish(), HOLDS).body_base64 == ""
    assert reported(a_publish(routed_queues=[]), keeping).body_base64 == ""
