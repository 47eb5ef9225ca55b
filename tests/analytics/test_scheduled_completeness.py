from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from analytics.models import Gap
from analytics.scheduled.summaries.completeness import Seen, find_doubt
from tests.analytics.builders import NOON
from topology.models import Topology

DAY, HOUR, SECOND = timedelta(days=1), timedelta(hours=1), timedelta(seconds=1)
FULL = Gap(from_at=NOON - 2 * HOUR, until_at=NOON - HOUR, why="The tap was full.", at_most=7)


def seen(**changes: Any) -> Seen:
    """A topology with delays of a day, of which everything is known and ten messages wait."""
    values: dict[str, Any] = {
        "topology": Topology(slug="orders", name="orders"),
        "now": NOON,
        "listed": 10,
        "overdue": 0,
        "long_overdue": 0,
        "queued": 10,
        "moved": 0,
        "longest": DAY,
        "watched_at": NOON - 30 * DAY,
    }
    return Seen(**(values | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"queued": None},
        {"queued": 25, "moved": 20},
        {"queued": 0, "moved": 20},
        {"overdue": 3},
        {"gaps": (FULL,)},
        {"overdue": 3, "long_overdue": 3},
        {"overdue": 3, "long_overdue": 3, "queued": 8, "moved": 9, "sees_exits": False},
        {"watched_at": NOON - HOUR},
        {"sees_entries": False},
    ],
    ids=lambda changes: ", ".join(changes) or "nothing",
)
def test_what_is_in_order_is_not_doubted(changes: dict[str, Any]) -> None:
    assert find_doubt(seen(**changes)) is None


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"queued": 25, "moved": 14}, 15),
        ({"queued": 4, "moved": 5}, -6),
        ({"queued": 11, "gaps": (FULL,), "moved": 0}, 1),
        ({"queued": 11, "gaps": (FULL,), "moved": 100}, 0),
        ({"queued": None, "gaps": (FULL,)}, 0),
        ({"queued": 12, "watched_at": NOON - HOUR}, 2),
        ({"queued": 12, "sees_entries": False, "listed": 0}, 12),
        ({"queued": 10, "silent_since": NOON - HOUR}, 0),
        ({"queued": 9, "behind": 30 * SECOND}, -1),
    ],
)
def test_a_difference_is_told_by_how_many_it_is_at_least(
    changes: dict[str, Any], difference: int
) -> None:
    doubt = find_doubt(seen(**changes))
    assert doubt is not None
    assert doubt.difference == difference


def test_an_empty_list_of_what_nobody_observes_is_doubted_though_its_queues_are_empty() -> None:
    doubt = find_doubt(seen(listed=0, queued=0, sees_entries=False))
    assert doubt is not None
    assert "shows only messages published by Delayboard" in doubt.why[0]
    assert (doubt.verdict, doubt.figure) == ("may be incomplete", "")
    missing = find_doubt(seen(listed=0, queued=1, sees_entries=False))
    assert missing is not None
    assert missing.verdict == "is incomplete"


def test_what_is_long_overdue_and_in_no_queue_is_told_however_much_moves() -> None:
    doubt = find_doubt(seen(listed=45, overdue=40, long_overdue=40, queued=7, moved=500))
    assert doubt is not None
    assert doubt.difference == -38
    assert doubt.why[0].startswith("38 that are overdue")


def test_it_is_incomplete_since_the_first_of_its_reasons() -> None:
    doubt = find_doubt(seen(gaps=(FULL,), silent_since=NOON - 10 * SECOND, queued=20))
    assert doubt is not None
    assert doubt.since == FULL.from_at
    assert doubt.why[0].startswith("The recorder does not read the tap")
    assert doubt.why[1] == "The tap was full. RabbitMQ dropped at most 7 copies."
    assert doubt.figure == "At least 10 waiting messages are not in this list."


def test_a_list_that_is_behind_says_how_far() -> None:
    doubt = find_doubt(seen(behind=42 * SECOND))
    assert doubt is not None
    assert doubt.why == ("The list is 42s behind the event log.",)
    assert doubt.since == NOON - 42 * SECOND
