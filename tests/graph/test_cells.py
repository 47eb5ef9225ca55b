from __future__ import annotations

import pytest

from tests.graph.pictures import pair, seen
from topology.definitions import Arguments, Queue
from topology.graph.cells import (
    MARK_WORDS,
    count_text,
    queue_mark,
    rate_text,
    snapshot_cells,
    snapshot_marks,
)
from topology.snapshot import QueueNumbers


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
        ({}, QueueNumbers(messages=1, consumers=0), "stuck"),
        ({"x-message-ttl": 1000}, QueueNumbers(messages=1, consumers=0), "waiting"),
        ({"x-max-length": 5}, QueueNumbers(messages=5, consumers=1), "full"),
        ({}, QueueNumbers(messages=1, consumers=1, state="down"), "down"),
    ],
)
def test_a_queue_is_in_one_state(
    arguments: dict[str, int], numbers: QueueNumbers | None, mark: str
) -> None:
    assert queue_mark(Queue("q", arguments=Arguments(arguments)), numbers) == mark
    assert mark in MARK_WORDS


def test_a_snapshot_gives_every_key_that_a_page_may_show() -> None:
    snapshot = seen(pair(), {"orders": QueueNumbers(messages=1204, consumers=2)}, {"orders": 3.0})
    cells = snapshot_cells(snapshot)
    assert cells["queue/orders/messages"] == "1\u202f204"
    assert cells["queue/orders/consumers"] == "2"
    assert cells["queue/orders/publish_rate"] == "–"
    assert cells["exchange/orders/rate"] == "3.0/s"
    assert snapshot_marks(snapshot) == {"queue/orders": "busy", "queue/orders-retry": "unknown"}
