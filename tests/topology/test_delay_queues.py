from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Arguments, Definitions, Queue
from topology.patterns.delay_queues.params import Params
from topology.patterns.delay_queues.pattern import delay_queues
from topology.patterns.pattern import ParamsError
from topology.patterns.table import PATTERNS
from topology.provisioning.verify import verify
from topology.structure.copies import Copy, Reading

SECOND = timedelta(seconds=1)
ORDERS = Params("orders", (10 * SECOND, 60 * SECOND))
OWN = delay_queues.definitions(ORDERS)
WORK = Definitions.of([Queue("orders")])


def died(queue: str, count: int = 1, reason: str = "expired") -> dict[str, Any]:
    return {"x-death": [{"queue": queue, "reason": reason, "count": count, "exchange": ""}]}


def delaying(name: str, seconds: float, work: str = "orders", **others: Any) -> Queue:
    return a_queue(name, ttl=int(seconds * 1000), dlx="", key=work, **others)


def test_a_delay_queue_is_that_of_the_article() -> None:
    queue = OWN.queue("orders_dlq_60")
    assert queue is not None
    assert queue.durable
    assert queue.arguments == Arguments(
        {
            "x-queue-type": "classic",
            "x-message-ttl": 60_000,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "orders",
        }
    )


def test_the_work_queue_is_no_part_of_it() -> None:
    assert {queue.name for queue in OWN.queues} == {"orders_dlq_10", "orders_dlq_60"}
    assert not OWN.exchanges
    assert not OWN.bindings


def test_delays_are_kept_in_order_and_once() -> None:
    parsed = delay_queues.parse({"queue": "orders", "delays": "1m,10s, 60s,"})
    assert parsed == ORDERS
    assert delay_queues.store(parsed)["delays"] == "10s, 1m"


@pytest.mark.parametrize(
    ("delay", "target", "problem"),
    [
        (11 * SECOND, "orders", "The available delays are 10s, 1m."),
        (10 * SECOND, "invoices", "always go to orders"),
        (timedelta(0), "orders_dlq_10", "always go to orders"),
    ],
)
def test_another_delay_or_target_is_refused(delay: timedelta, target: str, problem: str) -> None:
    with pytest.raises(ParamsError, match=problem):
        delay_queues.route(ORDERS, delay, target)


def test_a_missing_work_queue_is_said_before_a_message_is_lost() -> None:
    assert "does not exist" in delay_queues.remarks(ORDERS, OWN)[0]
    assert "would drop the message" in delay_queues.target_problem(ORDERS, "orders", OWN)
    assert delay_queues.target_problem(ORDERS, "orders", OWN | WORK) == ""
    assert "as a tap" in delay_queues.target_problem(ORDERS, "delayboard.tap.x", OWN | WORK)


@pytest.mark.parametrize("found", [OWN, OWN | WORK])
def test_verify_says_whether_the_work_queue_is_there(found: Definitions) -> None:
    verdict = verify(PATTERNS[delay_queues.KIND], ORDERS, OWN, a_snapshot(found))
    arrives = [check for check in verdict.checks if "probe" in check.sentence]
    assert [check.holds for check in arrives] == [found != OWN] * 2
    if found == OWN:
        assert "the default exchange has no queue for the key “orders”" in arrives[0].sentence


def test_nothing_taps_the_default_exchange_and_the_page_says_so() -> None:
    assert delay_queues.taps(ORDERS) == ()
    assert list(delay_queues.remarks(ORDERS, OWN | WORK)) == [
        "A tap cannot record this topology, because no tap observes the default exchange."
    ]


NONE = timedelta(0)


@pytest.mark.parametrize(
    ("key", "headers", "reading"),
    [
        ("orders_dlq_10", {}, Reading("entry", "orders", "orders_dlq_10", 10 * SECOND, 1)),
        (
            "orders_dlq_60",
            {"attempt": 2},
            Reading("entry", "orders", "orders_dlq_60", 60 * SECOND, 2),
        ),
        (
            "orders_dlq_60",
            died("orders_dlq_10", 3),
            Reading("entry", "orders", "orders_dlq_60", 60 * SECOND, 4, "orders_dlq_10", "expired"),
        ),
        (
            "orders",
            died("orders_dlq_10", 3),
            Reading("exit", "orders", "orders", 10 * SECOND, 3, "orders_dlq_10", "expired"),
        ),
        (
            "orders",
            died("orders_dlq_10") | {"attempt": 2},
            Reading("exit", "orders", "orders", 10 * SECOND, 2, "orders_dlq_10", "expired"),
        ),
        ("orders", {}, Reading("publish", "orders", "orders", NONE, 0)),
        ("orders", {"attempt": 2}, Reading("publish", "orders", "orders", NONE, 0)),
        (
            "orders",
            died("orders_dlq_10", reason="rejected"),
            Reading("publish", "orders", "orders", NONE, 0, "orders_dlq_10", "rejected"),
        ),
        (
            "orders",
            died("orders_dlq_30"),
            Reading("publish", "orders", "orders", NONE, 0, "orders_dlq_30", "expired"),
        ),
    ],
)
def test_a_copy_is_read_by_the_queue_its_key_names_and_where_it_died(
    key: str, headers: dict[str, Any], reading: Reading
) -> None:
    assert delay_queues.read(ORDERS, Copy("", key, headers)) == reading


@pytest.mark.parametrize("attempt", ["two", True, None, -1, 0, 2.0, [2]])
def test_an_odd_attempt_header_is_left_to_the_history(attempt: Any) -> None:
    reading = delay_queues.read(ORDERS, Copy("", "orders_dlq_10", {"attempt": attempt}))
    assert reading is not None
    assert reading.attempt == 1


@pytest.mark.parametrize(
    "copy", [Copy("x", "orders", {}), Copy("", "orders_dlq_30", {}), Copy("", "other", {})]
)
def test_other_queues_and_exchanges_are_none_of_it(copy: Copy) -> None:
    assert delay_queues.read(ORDERS, copy) is None


def test_those_of_two_work_queues_are_told_apart() -> None:
    others = delay_queues.definitions(Params("orders_dlq_10", (5 * SECOND,)))
    first, second = delay_queues.recognize(OWN | WORK | others)
    assert first.params == ORDERS
    assert first.claims == {obj.identity for obj in OWN}
    assert (second.name, second.missing) == ("orders_dlq_10", ())


def test_no_other_pattern_takes_them_for_its_own() -> None:
    kinds = [use.kind for pattern in PATTERNS.values() for use in pattern.recognize(OWN | WORK)]
    assert kinds == [delay_queues.KIND]


def test_one_whose_time_is_not_that_of_its_name_is_told_and_not_taken_for_whole() -> None:
    found = WORK | Definitions.of([delaying("orders_dlq_10", 15), delaying("orders_dlq_60", 60)])
    (use,) = delay_queues.recognize(found)
    assert use.params == ORDERS
    assert use.missing == (
        "The TTL of “orders_dlq_10” is 15s, which differs from the seconds in the name.",
    )


def test_a_queue_with_other_arguments_and_a_missing_work_queue_are_told() -> None:
    other = delaying("orders_dlq_10", 10, x_max_length=5)
    (use,) = delay_queues.recognize(Definitions.of([other, delaying("orders_dlq_60", 60)]))
    assert use.params == ORDERS
    assert use.missing == (
        "The queue “orders_dlq_10” differs from the pattern.",
        "The work queue “orders” is missing.",
    )


@pytest.mark.parametrize(
    "queue",
    [
        delaying("orders_dlq_10", 10, work="invoices"),
        a_queue("orders_dlq_10", ttl=10_000, dlx="x", key="orders"),
        a_queue("orders_dlq_10", dlx="", key="orders"),
        a_queue("orders_dlq_10", ttl=10**30, dlx="", key="orders"),
        a_queue("orders_dlq_10", ttl="10000", dlx="", key="orders"),
        a_queue("_dlq_10", ttl=10_000, dlx="", key=""),
    ],
)
def test_what_has_only_the_name_is_left_alone(queue: Queue) -> None:
    assert list(delay_queues.recognize(WORK | Definitions.of([queue]))) == []


def test_the_example_publishes_confirmed_and_strips_the_history() -> None:
    example = delay_queues.consumer_example(Params('a"b', (10 * SECOND, 60 * SECOND)))
    assert 'queue, delays = "a\\"b", [10, 60]' in example
    for needed in ("confirm_delivery", "mandatory=True", "delivery_mode = 2", '"x-death"'):
        assert needed in example
