"""Rows of imported lines go when they are past their keeping, and no sooner."""

from __future__ import annotations

from datetime import timedelta

import pytest

from analytics.retention import rules
from analytics.retention.rules import Alive, clean
from delayboard.models import ImportedTimeout
from delayboard.retention.table import IMPORTS
from tests.topology.builders import NOON
from topology.models import Topology

DAY = timedelta(days=1)
OLD, YOUNG = NOON - 366 * DAY, NOON - 364 * DAY


def forget_timeouts(alive: Alive = lambda: None) -> int:
    return clean([IMPORTS], NOON, alive)[IMPORTS.what]


def some_rows(levels: Topology) -> None:
    """One for each of published and due, long ago or not, and one that was left half-done."""
    for key, published_at, due_at, begun_at in (
        ("old", OLD, OLD, OLD),
        ("left", None, OLD, OLD),
        ("due lately", OLD, YOUNG, OLD),
        ("not due", OLD, NOON + DAY, OLD),
        ("published lately", YOUNG, OLD, OLD),
        ("left lately", None, OLD, YOUNG),
    ):
        row = ImportedTimeout.objects.create(
            topology=levels, key=key, destination="a", due_at=due_at, published_at=published_at
        )
        ImportedTimeout.objects.filter(pk=row.pk).update(begun_at=begun_at)


def left() -> set[str]:
    return set(ImportedTimeout.objects.values_list("key", flat=True))


def test_what_was_due_and_published_a_year_ago_is_forgotten_in_batches(
    levels: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_rows(levels)
    monkeypatch.setattr(rules, "BATCH", 1)
    batches: list[None] = []
    assert forget_timeouts(lambda: batches.append(None)) == 2
    assert len(batches) == 2
    assert left() == {"due lately", "not due", "published lately", "left lately"}
    assert forget_timeouts() == 0


def test_one_that_is_stopped_goes_on_the_next_time(
    levels: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    some_rows(levels)
    monkeypatch.setattr(rules, "BATCH", 1)

    def stop() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        forget_timeouts(stop)
    assert forget_timeouts() == 1
