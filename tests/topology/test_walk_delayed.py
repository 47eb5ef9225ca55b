"""Exchanges of the type x-delayed-message: what they keep, for how long, and where it goes then."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tests.topology.builders import a_queue, a_snapshot
from tests.topology.walks import AT_LEAST_ONCE, ms, of, only
from topology.definitions import (
    DELAY_HEADER,
    DELAYED_TYPE,
    LONGEST_DELAY_MS,
    Arguments,
    Binding,
    Exchange,
    Queue,
)
from topology.routing.context import Consumer
from topology.routing.matching import delayed_exchange
from topology.routing.trace_route import Question, ask
from topology.routing.walk import walk


def later(name: str = "later", kind: str = "direct", **arguments: str) -> Exchange:
    stated = {n.replace("_", "-"): value for n, value in arguments.items()}
    return Exchange(
        name, delayed_exchange.DELAYED, arguments=Arguments({"x-delayed-type": kind} | stated)
    )


DIRECT = of(later(), Queue("work"), Binding("later", "work", "k"))


@pytest.mark.parametrize(
    ("stated", "after_ms"),
    [
        (1, 1),
        (5000, 5000),
        (delayed_exchange.LONGEST_MS, delayed_exchange.LONGEST_MS),
        (delayed_exchange.LONGEST_MS + 1, 0),
        (0, 0),
        (-5000, 0),
        ("250", 250),
        ("+7", 7),
        (1.9, 1),
        (True, 0),
        (None, 0),
        ([5000], 0),
        ({"ms": 5000}, 0),
    ],
)
def test_the_header_says_how_long_within_its_bounds(stated: Any, after_ms: int) -> None:
    outcome = only(walk(DIRECT, "later", "k", headers={"x-delay": stated}))
    assert (outcome.ending, outcome.queue, outcome.after) == ("delivered", "work", ms(after_ms))
    assert len(outcome.doubts) == bool(after_ms)


def test_without_the_header_it_goes_on_at_once() -> None:
    assert only(walk(DIRECT, "later", "k")).after == ms(0)


@pytest.mark.parametrize(
    "stated", ["soon", "", "1" * 300, "٣", float("nan"), float("inf"), b"\xff", Decimal("1.5")]
)
def test_a_header_on_which_the_plugin_fails_is_not_guessed(stated: Any) -> None:
    outcome = only(walk(DIRECT, "later", "k", headers={"x-delay": stated}))
    assert (outcome.ending, outcome.after) == ("uncertain", ms(0))


@pytest.mark.parametrize(
    ("kind", "binding", "arrives"),
    [
        ("direct", Binding("later", "work", "a.b"), True),
        ("direct", Binding("later", "work", "a.*"), False),
        ("topic", Binding("later", "work", "a.*"), True),
        ("topic", Binding("later", "work", "b.*"), False),
        ("fanout", Binding("later", "work", "other"), True),
        ("headers", Binding("later", "work", "", arguments=Arguments({"n": 1})), True),
        ("headers", Binding("later", "work", "", arguments=Arguments({"n": 2})), False),
    ],
)
def test_after_the_delay_it_chooses_as_its_delayed_type_does(
    kind: str, binding: Binding, arrives: bool
) -> None:
    found = of(later(kind=kind), Queue("work"), binding)
    outcome = only(walk(found, "later", "a.b", headers={"x-delay": 40, "n": 1}))
    assert (outcome.ending == "delivered", outcome.after) == (arrives, ms(40))


@pytest.mark.parametrize("kind", ["x-consistent-hash", delayed_exchange.DELAYED, ""])
def test_a_delayed_type_of_no_rule_of_ours_is_not_guessed(kind: str) -> None:
    found = of(later(kind=kind), Queue("work"), Binding("later", "work", "k"))
    assert only(walk(found, "later", "k", headers={"x-delay": 40})).ending == "uncertain"


def test_what_a_delayed_exchange_alone_keeps_is_said_to_be_kept_and_not_to_be_refused() -> None:
    kept = walk(DIRECT, "later", "k", headers={"x-delay": 40})
    assert only(kept).kept == "stored by the exchange “later” for 40ms"
    assert kept.is_only_kept
    at_once = walk(DIRECT, "later", "k")
    assert (only(at_once).kept, at_once.is_only_kept) == ("", False)
    lost = walk(DIRECT, "later", "other", headers={"x-delay": 40})
    assert only(lost).kept == only(kept).kept
    assert (lost.is_only_kept, lost.is_routed) == (True, False)


def test_what_another_queue_gets_at_once_is_not_given_back() -> None:
    both = DIRECT | of(
        Exchange("in", "fanout"),
        Binding("in", "later", "", destination_is_queue=False),
        Queue("now"),
        Binding("in", "now", ""),
    )
    walked = walk(both, "in", "k", headers={"x-delay": 40})
    assert {o.queue: bool(o.kept) for o in walked.delivered} == {"now": False, "work": True}
    assert not walked.is_only_kept


def test_a_dead_letter_that_an_exchange_keeps_was_taken_by_its_first_queue() -> None:
    found = DIRECT | of(a_queue("hold", ttl=10, dlx="later", key="k"))
    walked = walk(found, "", "hold", headers={"x-delay": 40})
    assert (only(walked).kept, walked.is_only_kept) == ("", False)


def test_what_finds_no_queue_is_lost_after_its_delay() -> None:
    outcome = only(walk(DIRECT, "later", "other", headers={"x-delay": 40}))
    assert (outcome.ending, outcome.after) == ("dropped", ms(40))
    assert outcome.why == "the exchange “later” has no queue for the key “other”"


def test_an_alternate_exchange_gets_a_copy_at_once_since_nothing_is_routed_yet() -> None:
    found = of(
        later(alternate_exchange="rest"),
        Exchange("rest", "fanout"),
        Queue("work"),
        Queue("odd"),
        Binding("later", "work", "k"),
        Binding("rest", "odd", ""),
    )
    walked = walk(found, "later", "k", headers={"x-delay": 40})
    assert {(o.queue, o.after) for o in walked.delivered} == {("odd", ms(0)), ("work", ms(40))}
    assert only(walk(found, "later", "k")).queue == "work"


def test_behind_another_exchange_only_its_own_copies_wait() -> None:
    found = of(
        Exchange("in", "fanout"),
        later(),
        Queue("work"),
        Queue("now"),
        Binding("in", "later", "", destination_is_queue=False),
        Binding("in", "now", ""),
        Binding("later", "work", "k"),
    )
    walked = walk(found, "in", "k", headers={"x-delay": 40})
    assert {(o.queue, o.after) for o in walked.delivered} == {("now", ms(0)), ("work", ms(40))}


def test_a_message_waits_in_delayed_exchanges_once_since_its_header_is_turned() -> None:
    found = of(
        later("first", "fanout"),
        later("second", "fanout"),
        Queue("work"),
        Binding("first", "second", "", destination_is_queue=False),
        Binding("second", "work", ""),
    )
    assert only(walk(found, "first", "k", headers={"x-delay": 40})).after == ms(40)
    assert delayed_exchange.mark_released({"x-delay": "40", "a": 1}) == {"x-delay": -40, "a": 1}
    assert delayed_exchange.mark_released({"x-delay": True}) == {"x-delay": True}


RING = of(later(), a_queue("work", ttl=10, dlx="later", key="k"), Binding("later", "work", "k"))


def test_a_dead_letter_that_was_kept_is_not_cut_as_a_ring() -> None:
    """Into the queue it died in it comes after the delay; the next time it is cut as usual."""
    walked = walk(RING, "", "work", headers={"x-delay": 40})
    outcome = only(walked)
    assert [(hop.queue, hop.after) for hop in outcome.hops] == [("work", ms(0)), ("work", ms(50))]
    assert (outcome.ending, outcome.after) == ("dropped", ms(60))
    assert "expired there before" in outcome.why


def test_a_queue_that_dead_letters_at_least_once_does_not_learn_of_what_is_kept() -> None:
    hold = a_queue("hold", ttl=10, dlx="later", key="k", **AT_LEAST_ONCE)
    walked = walk(DIRECT | of(hold), "", "hold", headers={"x-delay": 40})
    assert {(o.ending, o.queue, o.after) for o in walked.outcomes} == {
        ("stuck", "hold", ms(10)),
        ("delivered", "work", ms(50)),
    }


def test_a_rejecting_consumer_and_a_delayed_exchange_go_round_for_ever() -> None:
    found = of(later(), a_queue("work", dlx="later", key="k"), Binding("later", "work", "k"))
    consumers = {"work": Consumer("rejects")}
    walked = walk(found, "later", "k", headers={"x-delay": 40}, consumers=consumers)
    outcome = only(walked)
    assert (outcome.ending, outcome.after) == ("stuck", ms(40))
    assert "cycles forever" in outcome.why


def test_the_way_through_a_delayed_exchange_is_shown_with_its_binding() -> None:
    snapshot = a_snapshot(DIRECT, version="4.2.0")
    answer = ask(Question("later", "k", {"x-delay": 40}), snapshot)
    assert answer.walk.delivered[0].hops[0].why == "stored by the exchange “later” for 40ms"
    assert answer.path == DIRECT


def test_the_pattern_speaks_of_the_same_type_header_and_bound() -> None:
    """They stand on one floor and cannot ask each other."""
    assert (DELAYED_TYPE, DELAY_HEADER) == (delayed_exchange.DELAYED, delayed_exchange.HEADER)
    assert LONGEST_DELAY_MS == delayed_exchange.LONGEST_MS
