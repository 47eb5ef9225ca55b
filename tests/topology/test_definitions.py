from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given

from tests.topology import strategies
from tests.topology.builders import a_queue
from topology.definitions import (
    MAXIMUM_TTL_MS,
    PROBE_PREFIX,
    TAP_PREFIX,
    Arguments,
    Binding,
    Definitions,
    Exchange,
    Queue,
    find_own_queue_problem,
    has_dead_letter_name,
)
from topology.snapshot import Snapshot


@pytest.mark.parametrize(
    ("one", "other", "are_equal"),
    [
        ({"a": 1, "b": "x"}, {"b": "x", "a": 1}, True),
        ({"a": True}, {"a": 1}, False),
        ({"a": False}, {"a": 0}, False),
        ({"a": 1.0}, {"a": 1}, False),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": 1}, {}, False),
    ],
)
def test_arguments_are_equal_when_value_and_type_class_are(
    one: dict[str, Any], other: dict[str, Any], are_equal: bool
) -> None:
    assert (Arguments(one) == Arguments(other)) == are_equal
    assert (Queue("q", arguments=Arguments(one)) == Queue("q", arguments=Arguments(other))) == (
        are_equal
    )
    assert len({Arguments(one), Arguments(other)}) == (1 if are_equal else 2)


def test_arguments_are_no_plain_dict_and_say_what_they_hold() -> None:
    arguments = Arguments({"a": 1})
    assert arguments != {"a": 1}
    assert (dict(arguments), len(arguments), repr(arguments)) == (
        {"a": 1},
        1,
        "Arguments({'a': 1})",
    )


@pytest.mark.parametrize(("value", "text", "number"), [("5", "5", None), (5, None, 5)])
def test_an_argument_is_given_as_what_it_is(value: Any, text: str, number: int) -> None:
    arguments = Arguments({"a": value})
    assert (arguments.text("a"), arguments.number("a")) == (text, number)
    assert (arguments.text("b"), arguments.number("b")) == (None, None)


@pytest.mark.parametrize("ttl", [True, "500", 0.5, -1, MAXIMUM_TTL_MS + 1, 10**30])
def test_what_no_broker_takes_as_a_ttl_is_none(ttl: Any) -> None:
    assert Queue("q", arguments=Arguments({"x-message-ttl": ttl})).message_ttl_ms is None


@pytest.mark.parametrize("ttl", [0, MAXIMUM_TTL_MS])
def test_the_shortest_and_the_longest_ttl_are_taken(ttl: int) -> None:
    assert Queue("q", arguments=Arguments({"x-message-ttl": ttl})).message_ttl_ms == ttl


@pytest.mark.parametrize(
    ("stated", "type_"), [({}, "classic"), ({"x-queue-type": "quorum"}, "quorum")]
)
def test_a_queue_with_its_type_stated_is_otherwise_the_same(stated: Any, type_: str) -> None:
    queue = Queue("q", durable=False, arguments=Arguments({"x-expires": 5, **stated}))
    expected = Arguments({"x-expires": 5, "x-queue-type": type_})
    assert queue.with_type() == replace(queue, arguments=expected)


def test_a_queue_without_a_type_is_classic() -> None:
    arguments = Arguments({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k"})
    queue = Queue("q", arguments=arguments)
    assert (queue.type, queue.dead_letter_exchange, queue.dead_letter_routing_key) == (
        "classic",
        "",
        "k",
    )
    assert Queue("q", arguments=Arguments({"x-queue-type": "quorum"})).type == "quorum"


def test_bindings_that_differ_only_in_an_argument_are_two() -> None:
    one, other = (Binding("x", "q", "", arguments=Arguments({"n": n})) for n in (1, True))
    assert one.identity != other.identity
    assert Binding("x", "q", "").identity != Binding("x", "q", "", False).identity


@given(strategies.definitions(), strategies.definitions())
def test_union_is_that_of_sets_and_without_takes_identities(
    one: Definitions, other: Definitions
) -> None:
    theirs = {obj.identity for obj in other}
    assert (one | other).without(theirs) == one.without(theirs)
    assert one.without(theirs) | one.only(theirs) == one
    assert one | one == one
    assert len(one.without(obj.identity for obj in one)) == 0
    assert set(one | other) == set(one) | set(other)


@given(strategies.definitions())
def test_what_is_bound_comes_after_both_ends_and_in_one_order_only(found: Definitions) -> None:
    objects = list(found)
    kinds = [(Exchange, Queue, Binding).index(type(obj)) for obj in objects]
    assert kinds == sorted(kinds)
    assert list(Definitions.of(reversed(objects))) == objects
    assert len(found) == len(objects)
    assert found.without(obj.identity for obj in objects) == Definitions()


def test_a_tap_and_its_bindings_are_left_out_and_nothing_else() -> None:
    tap = TAP_PREFIX + "orders"
    real = Definitions.of([Exchange("x"), Queue("q"), Binding("x", "q", "k")])
    tapped = real | Definitions.of([Queue(tap), Binding("x", tap, "k")])
    assert tapped.without_taps() == real
    assert real.without_taps() == real


def test_things_are_found_by_name() -> None:
    found = Definitions.of([Exchange("x"), Queue("q")])
    assert (found.exchange("x"), found.queue("q")) == (Exchange("x"), Queue("q"))
    assert (found.exchange("q"), found.queue("x")) == (None, None)


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("3.10.8", (3, 10, 8)),
        ("4.1.0-rc.1", (4, 1, 0)),
        ("4.3.6+7.gabc", (4, 3)),
        ("", ()),
        ("4.²", (4,)),
    ],
)
def test_a_version_is_read_as_far_as_it_is_numbers(version: str, numbers: tuple[int, ...]) -> None:
    nothing = Definitions()
    snapshot = Snapshot(version, datetime.now(UTC), nothing, nothing)
    assert snapshot.version_tuple == numbers


def test_what_leads_where_is_found_by_name_and_is_none_for_others() -> None:
    x, inner = Exchange("x"), Exchange("inner", "fanout")
    dying = [a_queue(name, ttl=5, dlx="x") for name in ("b", "a")]
    to_a, also, passing = Binding("x", "a", "k"), Binding("x", "a", "j"), Binding("x", "inner", "")
    passing = replace(passing, destination_is_queue=False)
    found = Definitions.of([x, inner, *dying, to_a, also, passing])
    assert list(found.leaving("x")) == sorted([to_a, also, passing], key=lambda b: b.identity)
    assert list(found.leads("x", "a")) == [also, to_a]
    assert list(found.leads("x", "inner")) == []
    assert [queue.name for queue in found.dying_into("x")] == ["a", "b"]
    assert (list(found.leaving("inner")), list(found.dying_into("inner"))) == ([], [])
    assert found.get(to_a.identity) == to_a
    assert found.get(("queue", "x")) is None
    assert found.only([x.identity, ("queue", "gone")]) == Definitions.of([x])


def test_what_was_looked_up_changes_neither_equality_nor_hash() -> None:
    looked_at, other = Definitions.of([Exchange("x")]), Definitions.of([Exchange("x")])
    assert looked_at.exchange("x") is not None
    assert looked_at == other
    assert hash(looked_at) == hash(other)


def test_messages_are_refused_in_the_queues_of_delayboard_alone() -> None:
    sentences = [find_own_queue_problem(name) for name in (f"{TAP_PREFIX}a", f"{PROBE_PREFIX}a")]
    assert sentences == [
        "This queue is a tap of Delayboard. Enter another queue.",
        "This queue is a probe queue of Delayboard. Enter another queue.",
    ]
    assert find_own_queue_problem("orders") == ""


@pytest.mark.parametrize(
    ("name", "of", "is_named"),
    [
        ("error", "", True),
        ("EasyNetQ_Default_Error_Queue_1", "", True),
        ("wolverine-dead-letter-queue", "", True),
        ("orders_error", "orders", True),
        ("orders_skipped", "", True),
        ("orders_skipped", "orders", False),
        ("orders.billing.parking-lot", "orders.billing", True),
        ("orders-Given-Up", "orders", True),
        ("orders.dead-letters", "orders", True),
        ("orders-dlq", "order", False),
        ("orders", "", False),
        ("dead", "", False),
        ("error", "orders", False),
    ],
)
def test_queues_for_failed_messages_are_known_by_their_names(
    name: str, of: str, is_named: bool
) -> None:
    assert has_dead_letter_name(name, of) is is_named
