"""Hold queues: names, leases, collisions, and what their taps see."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.topology.builders import a_queue
from topology.definitions import Arguments, Definitions, Exchange, Queue
from topology.patterns.hold_queues.params import Params
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.pattern import ParamsError
from topology.structure.copies import Copy

ORDERS = Params("orders", ("created",))


def held(params: Params, delay: timedelta, key: str) -> Queue:
    (queue,) = hold_queues.route(params, delay, key).declares.queues
    return queue


def died_in(queue: str, count: int = 1) -> dict[str, object]:
    return {"x-death": [{"queue": queue, "reason": "expired", "count": count, "exchange": ""}]}


def test_a_hold_queue_is_that_of_the_article_with_a_lease_that_outlasts_its_messages() -> None:
    queue = held(ORDERS, timedelta(seconds=2), "created")
    assert queue.name == "delay.2000.orders.created"
    assert queue.durable
    assert queue.arguments == Arguments(
        {
            "x-queue-type": "classic",
            "x-message-ttl": 2000,
            "x-dead-letter-exchange": "orders",
            "x-dead-letter-routing-key": "created",
            "x-expires": 62_000,
        }
    )


@pytest.mark.parametrize(
    ("lease", "delay", "expires_ms"),
    [
        ("generous", timedelta(milliseconds=1), 60_001),
        ("generous", timedelta(minutes=1), 120_000),
        ("generous", timedelta(hours=1), 7_200_000),
        ("double", timedelta(seconds=2), 4_000),
        ("double", timedelta(hours=1), 7_200_000),
    ],
)
def test_leases(lease: str, delay: timedelta, expires_ms: int) -> None:
    params = Params("orders", lease=lease)
    assert held(params, delay, "k").arguments["x-expires"] == expires_ms
    route = hold_queues.route(params, delay, "k")
    assert route.lease == (timedelta(milliseconds=expires_ms) - delay) / 2


def test_no_delay_goes_straight_to_the_destination() -> None:
    route = hold_queues.route(ORDERS, timedelta(0), "created")
    assert (route.exchange, route.routing_key) == ("orders", "created")
    assert route.declares == Definitions()


def test_a_part_of_a_millisecond_is_rounded_up() -> None:
    assert held(ORDERS, timedelta(microseconds=1500), "created").arguments["x-message-ttl"] == 2


@pytest.mark.parametrize(
    ("params", "delay", "key", "problem"),
    [
        (ORDERS, timedelta(seconds=1), "paid", "The available keys are created."),
        (
            Params("x", delays=(timedelta(seconds=5), timedelta(minutes=1))),
            timedelta(seconds=6),
            "k",
            "The available delays are 5s, 1m.",
        ),
        (Params("x"), timedelta(days=1826), "k", "no lease over 3650 days"),
        (Params("x"), timedelta(seconds=1), "k" * 245, "exceeds 255 bytes"),
    ],
)
def test_what_no_hold_queue_can_do_is_refused(
    params: Params, delay: timedelta, key: str, problem: str
) -> None:
    with pytest.raises(ParamsError, match=problem):
        hold_queues.route(params, delay, key)


def test_names_that_collide_at_their_dots_are_explained() -> None:
    theirs = held(Params("orders.eu"), timedelta(seconds=2), "created")
    ours = Params("orders", ("eu.created",))
    found = Definitions.of([theirs, Exchange("orders")])
    (collision, _) = hold_queues.remarks(ours, found)
    assert collision == (
        "“delay.2000.orders.eu.created” delays messages to the exchange “orders.eu” with "
        "key “created”. This topology cannot use this delay and key, because the name "
        "exists."
    )
    other = Definitions.of([a_queue("delay.5.orders.x"), Exchange("orders")])
    assert "is not a hold queue" in hold_queues.remarks(ours, other)[0]


def test_a_missing_destination_exchange_is_told_before_a_message_is_lost() -> None:
    assert "would drop the message" in hold_queues.target_problem(ORDERS, "created", Definitions())
    there = Definitions.of([Exchange("orders")])
    assert hold_queues.target_problem(ORDERS, "created", there) == ""
    assert hold_queues.target_problem(Params(), "any", Definitions()) == ""


def test_its_hold_queues_are_found_the_shortest_delay_first_and_nobody_elses() -> None:
    long, short = (held(ORDERS, timedelta(seconds=n), "created") for n in (60, 2))
    others = [
        held(Params("orders.eu"), timedelta(seconds=2), "created"),
        a_queue("delay.1.orders.k"),
    ]
    found = Definitions.of([long, short, *others])
    assert list(hold_queues.members(ORDERS, found)) == [short, long]


def test_what_comes_out_tells_its_delay_by_the_queue_it_died_in() -> None:
    queue = "delay.2000.orders.created"
    reading = hold_queues.read(ORDERS, Copy("orders", "created", died_in(queue, 3)))
    assert reading is not None
    assert (reading.phase, reading.destination, reading.queue) == ("exit", "created", queue)
    assert (reading.delay, reading.attempt) == (timedelta(seconds=2), 3)


@pytest.mark.parametrize("headers", [{}, died_in("elsewhere"), died_in("delay.x.orders.created")])
def test_what_came_another_way_is_a_publish(headers: dict[str, object]) -> None:
    reading = hold_queues.read(ORDERS, Copy("orders", "created", headers))
    assert reading is not None
    assert (reading.phase, reading.delay, reading.attempt) == ("publish", timedelta(0), 0)


def test_other_exchanges_are_none_of_it() -> None:
    assert hold_queues.read(ORDERS, Copy("else", "created", {})) is None
    assert hold_queues.read(ORDERS, Copy("", "orders", {})) is None


def test_nothing_taps_the_default_exchange_and_the_page_says_so() -> None:
    assert hold_queues.taps(Params()) == ()
    assert "A tap cannot record this topology" in hold_queues.remarks(Params(), Definitions())[0]


def test_keys_with_blanks_are_kept_as_a_list() -> None:
    params = Params("x", ("a key", "", "[odd"))
    assert hold_queues.parse(hold_queues.store(params)) == params
    assert hold_queues.parse({"keys": "paid  created"}).keys == ("created", "paid")
