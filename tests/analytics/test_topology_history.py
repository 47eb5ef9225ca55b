"""What passed a topology by hour and day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from analytics.charts import figures as charts
from analytics.models import Gap, Minute
from analytics.scheduled import projection
from analytics.topology_history import Width, read_history, read_width
from tests.analytics.builders import an_entry
from topology.models import State, Topology

NOW = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
NOTHING = frozenset[str]()


@pytest.fixture
def applied(topology: Topology) -> Topology:
    topology.state, topology.applied_at = State.APPLIED, NOW - 10 * HOUR
    topology.save()
    for ago, entered, left, late in ((2, 9, 4, 1), (1, 2, 5, 2)):
        Minute.objects.create(
            topology=topology, minute_at=NOW - ago * HOUR, entered=entered, left=left, late=late
        )
    waiting = [an_entry(f"m{n}", NOW, due_at=NOW + HOUR) for n in range(3)]
    projection.project(topology, waiting)
    return topology


def test_hours_are_summed_and_the_depth_is_computed_backwards(applied: Topology) -> None:
    found = read_history(applied, "hour", NOW, NOTHING)
    assert [(one.entered, one.left, one.late, one.waiting) for one in found.spans[-4:]] == [
        (0, 0, 0, 1),
        (9, 4, 1, 6),
        (2, 5, 2, 3),
        (0, 0, 0, 3),
    ]
    assert found.spans[0].entered is None
    # So the page says since when, where it shows earlier hours.
    assert found.recorded_from == NOW - 10 * HOUR
    assert read_history(applied, "minute", NOW, NOTHING).recorded_from is None
    assert not found.is_empty


def test_minutes_are_shown_of_a_topology_that_was_applied_just_now(applied: Topology) -> None:
    Minute.objects.create(topology=applied, minute_at=NOW - 2 * MINUTE, entered=1, left=3, late=0)
    found = read_history(applied, "minute", NOW, NOTHING)
    assert [one.label[-3:] for one in found.spans[-2:]] == [":29", ":30"]
    assert [(one.entered, one.left) for one in found.spans[-3:]] == [(1, 3), (0, 0), (0, 0)]
    assert len(found.spans) == 60
    assert read_width("", applied, NOW) == "hour"
    applied.applied_at = NOW - HOUR
    assert [read_width(text, applied, NOW) for text in ("", "day", "x")] == [
        "minute",
        "day",
        "minute",
    ]


@pytest.mark.parametrize("width", ["minute", "hour", "day"])
def test_what_is_not_observed_is_unknown_and_not_zero(applied: Topology, width: Width) -> None:
    found = read_history(applied, width, NOW, frozenset({"exit"}))
    assert {one.left for one in found.spans} == {None}
    assert {one.waiting for one in found.spans} == {None}
    assert (found.unobserved, "unknown" in found.no_depth) == ("deliveries", True)


def test_a_gap_makes_the_depth_unknown(applied: Topology) -> None:
    Gap.objects.create(topology=applied, from_at=NOW - HOUR, until_at=NOW, why="Full.")
    assert "gaps" in read_history(applied, "day", NOW, NOTHING).no_depth


def test_what_passed_before_the_firehose_was_enabled_is_unknown(applied: Topology) -> None:
    begun = {"exit": NOW - HOUR}
    found = read_history(applied, "hour", NOW, NOTHING, begun)
    assert [(one.entered, one.left, one.late, one.waiting) for one in found.spans[-3:]] == [
        (9, None, None, None),
        (2, 5, 2, 3),
        (0, 0, 0, 3),
    ]


def test_deleted_days_are_unknown(applied: Topology) -> None:
    Topology.objects.update(applied_at=NOW - 20 * 24 * HOUR)
    applied.refresh_from_db()
    spans = read_history(applied, "day", NOW, NOTHING, {}, NOW - 48 * HOUR).spans
    assert [one.entered for one in spans[-4:]] == [None, None, 0, 11]


def test_few_messages_have_whole_ticks(applied: Topology) -> None:
    spans = read_history(applied, "hour", NOW, NOTHING).spans
    assert charts.lateness(spans)["layout"]["yaxis"]["dtick"] == 1
    assert "dtick" not in charts.throughput(spans)["layout"]["yaxis"]
