from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from time import process_time

import pytest

from tests.graph.pictures import LADDER, bound, ladder_of, level_set, seen
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.graph.ladder import Ladder, Rung, build_ladder
from topology.snapshot import QueueNumbers, Snapshot

WANTED = level_set()
IDLE = {name: QueueNumbers(0, 0, 0, 0, 0.0) for name in LADDER.names}


def ladder(found: Snapshot | Definitions) -> Ladder:
    return build_ladder(LADDER, found, WANTED)


def rung(found: Snapshot | Definitions, level: int) -> Rung:
    return next(rung for rung in ladder(found).rungs if rung.level == level)


def test_the_longest_wait_is_the_top_rung() -> None:
    rungs = ladder(WANTED).rungs
    assert [rung.level for rung in rungs] == list(reversed(range(28)))
    assert (rungs[0].wait, rungs[-1].wait) == ("4y 93d", "1s")


def test_a_message_is_due_at_the_latest_after_its_level_and_all_below() -> None:
    assert [rung(WANTED, level).latest for level in (0, 1, 3)] == [
        timedelta(seconds=1),
        timedelta(seconds=3),
        timedelta(seconds=15),
    ]


def test_a_set_of_short_steps_has_short_waits() -> None:
    levels = ladder_of(3, timedelta(milliseconds=50))
    wanted = level_set(levels)
    rungs = build_ladder(levels, wanted, wanted).rungs
    assert [rung.wait for rung in rungs] == ["200ms", "100ms", "50ms"]


def test_a_plan_has_no_numbers_and_nothing_is_missing_in_it() -> None:
    plan = ladder(WANTED)
    assert not plan.is_seen
    assert not plan.is_absent
    assert {(rung.mark, rung.words, rung.numbers) for rung in plan.rungs} == {("", "", None)}


def test_unknown_numbers_are_no_zeros() -> None:
    unknown = rung(seen(WANTED), 3)
    assert (unknown.mark, unknown.words) == ("unknown", "no data")
    assert unknown.messages == "–"


def test_the_numbers_have_the_texts_of_the_live_values() -> None:
    numbers = QueueNumbers(1204, 1200, 0, 0, 0.4)
    known = rung(seen(WANTED, {LADDER.names[3]: numbers}), 3)
    assert (known.messages, known.kept, known.rate) == ("1\u202f204", "4", "0.4/s")


@pytest.mark.parametrize(
    ("gone", "lacks"),
    [
        ([("queue", LADDER.names[5])], ("queue",)),
        ([("exchange", LADDER.names[5])], ("exchange",)),
        ([("exchange", LADDER.names[5]), ("queue", LADDER.names[5])], ("exchange", "queue")),
    ],
)
def test_what_is_missing_of_a_level_is_named(
    gone: list[tuple[str, str]], lacks: tuple[str, ...]
) -> None:
    bare = WANTED.without(gone)
    without = Definitions(
        bare.exchanges,
        bare.queues,
        frozenset(b for b in bare.bindings if ("exchange", b.source) not in gone),
    )
    broken = rung(seen(without, IDLE), 5)
    assert (broken.lacks, broken.mark) == (lacks, "missing")
    assert broken.words == f"missing: {' and '.join(lacks)}"
    assert broken.is_missing == ("queue" in lacks)
    assert rung(seen(without, IDLE), 6).mark == "empty"


@pytest.mark.parametrize(
    ("in_queue", "word"), [(True, "queue binding"), (False, "next-level binding")]
)
def test_a_missing_binding_is_named_by_what_it_does(in_queue: bool, word: str) -> None:
    name = LADDER.names[5]
    gone = next(
        b for b in WANTED.bindings if b.source == name and b.destination_is_queue == in_queue
    )
    assert rung(seen(WANTED.without([gone.identity]), IDLE), 5).lacks == (word,)


def with_arguments(level: int, **arguments: int) -> Definitions:
    old = next(queue for queue in WANTED.queues if queue.name == LADDER.names[level])
    kept = {name: value for name, value in old.arguments.items() if name != "x-message-ttl"}
    new = replace(
        old, arguments=Arguments(kept | {n.replace("_", "-"): v for n, v in arguments.items()})
    )
    return WANTED.without([old.identity]) | Definitions.of([new])


def test_a_level_that_waits_another_time_says_both() -> None:
    odd = rung(seen(with_arguments(7, x_message_ttl=60_000), IDLE), 7)
    assert odd.is_off
    assert odd.words == "TTL 1m instead of 2m 8s; empty"


def test_a_level_that_waits_for_ever_lacks_its_time() -> None:
    assert rung(seen(with_arguments(7), IDLE), 7).lacks == ("TTL",)


def test_before_it_is_applied_all_of_it_is_absent() -> None:
    planned = ladder(seen(Definitions()))
    assert planned.is_absent
    assert planned.delivery_missing
    assert {rung.mark for rung in planned.rungs} == {"missing"}


def test_destinations_are_what_delivery_is_bound_to_and_no_tap_is_one() -> None:
    ends = bound("orders", "billing") | bound("Sales", in_queues=False)
    tap = Definitions.of(
        [Queue("delayboard.tap.x"), Binding(LADDER.delivery, "delayboard.tap.x", "#")]
    )
    found = seen(WANTED | ends | tap, {"orders": QueueNumbers(3, 3, 0, 1)})
    drawn = ladder(found).destinations
    assert [(end.kind, end.name, end.mark) for end in drawn] == [
        ("exchange", "Sales", "nowhere"),
        ("queue", "billing", "unknown"),
        ("queue", "orders", "busy"),
    ]
    assert drawn[2].messages == "3"


def test_an_exchange_that_leads_on_is_a_sound_destination() -> None:
    ends = bound("Sales", in_queues=False) | Definitions.of([Binding("Sales", "work", "")])
    (end,) = ladder(seen(WANTED | ends | Definitions.of([Queue("work")]))).destinations
    assert (end.mark, end.words) == ("", "")


def test_an_exchange_with_an_alternate_leads_on_too() -> None:
    ends = Definitions.of(
        [
            Exchange("Sales", "fanout", arguments=Arguments({"alternate-exchange": "lost"})),
            Binding(LADDER.delivery, "Sales", "#.Sales", destination_is_queue=False),
        ]
    )
    assert ladder(seen(WANTED | ends)).destinations[0].mark == ""


def test_a_wanted_destination_that_is_not_bound_is_missing() -> None:
    wanted = WANTED | bound("orders")
    (end,) = build_ladder(LADDER, seen(WANTED), wanted).destinations
    assert (end.name, end.missing, end.words) == ("orders", True, "not bound")


def test_a_key_of_another_name_is_told() -> None:
    odd = Definitions.of([Queue("q"), Binding(LADDER.delivery, "q", "#.shop.orders")])
    (end,) = ladder(seen(WANTED | odd)).destinations
    assert end.unusual_key == "#.shop.orders"
    assert ladder(WANTED | bound("q")).destinations[0].unusual_key == ""


def test_a_consumer_on_a_level_is_told() -> None:
    taken = rung(seen(WANTED, IDLE | {LADDER.names[2]: QueueNumbers(4, 4, 0, 2)}), 2)
    assert taken.words == "consumed before the due time"


def test_a_large_vhost_is_looked_through_a_few_times_only() -> None:
    crowd = Definitions(
        frozenset(Exchange(f"x{number}") for number in range(10_000)),
        frozenset(Queue(f"q{number}") for number in range(10_000)),
        frozenset(Binding(f"x{number}", f"q{number}", "k") for number in range(10_000)),
    )
    found = seen(WANTED | bound("orders") | crowd, IDLE)
    began = process_time()
    assert len(ladder(found).rungs) == 28
    assert process_time() - began < 0.5
