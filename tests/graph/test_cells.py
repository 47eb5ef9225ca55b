from __future__ import annotations

from dataclasses import replace

import pytest

from tests.graph.pictures import LADDER, bound, level_set, pair, seen
from topology.content.text import count_text
from topology.definitions import Arguments, ArgumentValue, Binding, Definitions, Queue
from topology.graph.edges import edges_of
from topology.graph.live_values import (
    MARK_WORDS,
    level_names,
    pace,
    queue_mark,
    rate_text,
    snapshot_marks,
    snapshot_version,
)
from topology.snapshot import QueueNumbers, count_stuck_in, has_stuck


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "–"), (0, "0"), (999, "999"), (1204, "1\u202f204"), (1234567, "1\u202f234\u202f567")],
)
def test_counts_are_grouped_in_threes(number: int | None, text: str) -> None:
    assert count_text(number) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, "–"), (0.0, "0/s"), (0.01, "<0.1/s"), (0.4, "0.4/s"), (12.3, "12/s")],
)
def test_small_rates_keep_a_digit_and_none_looks_like_zero(rate: float | None, text: str) -> None:
    assert rate_text(rate) == text


@pytest.mark.parametrize(
    ("arguments", "numbers", "mark"),
    [
        ({}, None, "unknown"),
        ({}, QueueNumbers(), "unknown"),
        ({}, QueueNumbers(messages=0), "empty"),
        ({}, QueueNumbers(messages=1, consumers=1), "busy"),
        ({}, QueueNumbers(messages=1, consumers=0), "no_consumer"),
        ({"x-dead-letter-exchange": ""}, QueueNumbers(messages=1, consumers=0), "no_consumer"),
        (
            {"x-message-ttl": 1000, "x-dead-letter-exchange": ""},
            QueueNumbers(messages=1, consumers=0),
            "waiting",
        ),
        ({"x-message-ttl": 1000}, QueueNumbers(messages=1, consumers=0), "no_consumer"),
        ({"x-max-length": 5}, QueueNumbers(messages=5, consumers=1), "full"),
        ({}, QueueNumbers(messages=1, consumers=1, state="down"), "down"),
        ({}, QueueNumbers(state="minority"), "down"),
        ({"x-max-length": 5}, QueueNumbers(messages=5, state="down"), "down"),
    ],
)
def test_a_queue_is_in_one_state(
    arguments: dict[str, ArgumentValue], numbers: QueueNumbers | None, mark: str
) -> None:
    assert queue_mark(Queue("q", arguments=Arguments(arguments)), numbers) == mark
    assert mark in MARK_WORDS


def test_every_queue_of_a_snapshot_has_a_mark() -> None:
    snapshot = seen(pair(), {"orders": QueueNumbers(messages=1204, consumers=2)})
    assert snapshot_marks(snapshot) == {"queue/orders": "busy", "queue/orders-retry": "unknown"}


def test_a_version_changes_with_what_a_page_shows_and_with_nothing_else() -> None:
    numbers = QueueNumbers(messages=4, consumers=2, publish_rate=12.1, reductions=7)
    before = seen(pair(), {"orders": numbers}, {"orders": 3.0})
    same = (replace(numbers, reductions=8), replace(numbers, publish_rate=12.2))
    other = (
        replace(numbers, messages=5),
        replace(numbers, consumers=None),
        replace(numbers, publish_rate=13.0),
        replace(numbers, state="down"),
    )
    for changed, is_same in [(one, True) for one in same] + [(one, False) for one in other]:
        after = replace(before, numbers={"orders": changed}, taken_at=before.taken_at)
        assert (snapshot_version(after) == snapshot_version(before)) is is_same
    assert snapshot_version(replace(before, alarms=("memory",))) != snapshot_version(before)
    assert snapshot_version(replace(before, exchange_rates={})) != snapshot_version(before)
    fewer = replace(before, definitions=Definitions())
    assert snapshot_version(fewer) != snapshot_version(before)


LEVEL = next(iter(sorted(level_set().queues, key=lambda queue: queue.name)))
CLASSIC = Queue("q", arguments=Arguments({"x-message-ttl": 1000, "x-dead-letter-exchange": "x"}))


@pytest.mark.parametrize(
    ("rate", "beat"),
    [(None, ""), (0.0, "0"), (0.01, "1"), (0.9, "1"), (1.0, "2"), (19.9, "2"), (20.0, "3")],
)
def test_a_rate_beats_in_three_paces_and_an_unknown_one_is_no_stop(
    rate: float | None, beat: str
) -> None:
    assert pace(rate) == beat


@pytest.mark.parametrize(
    ("numbers", "count"),
    [
        (None, None),
        (QueueNumbers(), None),
        (QueueNumbers(messages=4, ready=4), None),
        (QueueNumbers(messages=4, ready=0, unacked=0), 4),
        (QueueNumbers(messages=4, ready=3, unacked=1), 0),
        (QueueNumbers(messages=3, ready=4, unacked=0), 0),
    ],
)
def test_held_is_what_is_neither_ready_nor_unacked(
    numbers: QueueNumbers | None, count: int | None
) -> None:
    assert count_stuck_in(LEVEL, numbers) == count


def test_a_classic_queue_holds_nothing() -> None:
    numbers = QueueNumbers(messages=4, ready=0, unacked=0)
    assert count_stuck_in(CLASSIC, numbers) is None
    assert queue_mark(CLASSIC, numbers) == "waiting"


@pytest.mark.parametrize(
    ("numbers", "mark"),
    [
        # as RabbitMQ 4.3.6 counted them: destination unbound, then 40 more behind it
        (QueueNumbers(messages=4, ready=0, unacked=0, consumers=0), "stuck"),
        (QueueNumbers(messages=55, ready=10, unacked=0, consumers=0, publish_rate=0.0), "stuck"),
        # as RabbitMQ 4.0.5 counted a steady 240 messages per second on their way
        (QueueNumbers(messages=243, ready=240, unacked=0, consumers=0), "waiting"),
        (QueueNumbers(messages=20, ready=0, unacked=0, publish_rate=240.0), "waiting"),
        (QueueNumbers(messages=0, ready=0, unacked=0, consumers=0), "empty"),
    ],
)
def test_a_level_holds_when_more_is_past_its_time_than_can_be_on_its_way(
    numbers: QueueNumbers, mark: str
) -> None:
    assert queue_mark(LEVEL, numbers, is_level=True) == mark


def test_a_consumer_on_a_level_takes_messages_early_even_when_it_looks_empty() -> None:
    numbers = QueueNumbers(messages=0, ready=0, unacked=0, consumers=1)
    assert queue_mark(LEVEL, numbers, is_level=True) == "taken"
    assert queue_mark(CLASSIC, numbers) == "empty"


def test_a_level_of_unknown_depth_holds_nothing() -> None:
    assert not has_stuck(LEVEL, None)


def test_levels_are_found_by_how_they_are_bound() -> None:
    others = Definitions.of([Queue("q"), Binding("q", "q", "#.1.#"), Binding("x", "q", "1.#")])
    assert level_names(level_set() | bound("orders") | others) == set(LADDER.names)


def test_a_level_with_a_consumer_is_marked() -> None:
    name = LEVEL.name
    quiet = seen(level_set(), {name: QueueNumbers(0, 0, 0, 1)})
    assert snapshot_marks(quiet)[f"queue/{name}"] == "taken"


def test_a_delay_queue_whose_messages_state_their_expirations_waits_for_no_consumer() -> None:
    delay = Queue("mail.delay", arguments=Arguments({"x-dead-letter-exchange": ""}))
    assert queue_mark(delay, QueueNumbers(messages=1, consumers=0)) == "waiting"
    assert queue_mark(delay, QueueNumbers(messages=1, consumers=1)) == "busy"
    (edge,) = [one for one in edges_of(Definitions.of([delay])) if one.kind == "dead-letter"]
    assert edge.label == "expired"
