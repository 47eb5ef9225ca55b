"""What is worked out beside the requests: one at a time, never of another place, never too old."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from threading import Event

import pytest

from tests.builders import eventually
from tests.topology.builders import a_snapshot
from topology.definitions import Definitions
from topology.views.background import STALE, BackgroundResults, Worked

FIRST = a_snapshot(Definitions())
NEXT = replace(FIRST, taken_at=FIRST.taken_at + timedelta(seconds=5))
MUCH_LATER = replace(FIRST, taken_at=FIRST.taken_at + STALE + timedelta(seconds=1))


def test_what_is_ready_soon_is_waited_for_and_kept() -> None:
    soon: BackgroundResults[int] = BackgroundResults()
    worked = eventually(lambda: soon.get(1, FIRST, lambda: 7), "it is ready")
    assert worked == Worked(FIRST, 7)
    assert soon.get(1, FIRST, lambda: 8) == worked


def test_of_a_newer_snapshot_the_last_is_shown_for_a_while_and_not_elsewhere() -> None:
    soon: BackgroundResults[int] = BackgroundResults()
    may_end = Event()
    eventually(lambda: soon.get(1, FIRST, lambda: 7), "it is ready")

    def slow() -> int:
        assert may_end.wait(60)
        return 8

    for snapshot, seen in ((NEXT, Worked(FIRST, 7)), (MUCH_LATER, None)):
        assert soon.get(1, snapshot, slow) == seen
    assert soon.get(2, NEXT, slow) is None
    may_end.set()

    def is_next() -> bool:
        worked = soon.get(1, NEXT, lambda: 9)
        return worked is not None and worked.value == 8

    eventually(is_next, "the newer one is ready")


def test_a_failure_is_raised_and_the_next_who_asks_begins_anew() -> None:
    soon: BackgroundResults[int] = BackgroundResults()

    def broken() -> int:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        eventually(lambda: soon.get(1, FIRST, broken), "it fails")
    assert eventually(lambda: soon.get(1, FIRST, lambda: 7), "it is ready").value == 7
