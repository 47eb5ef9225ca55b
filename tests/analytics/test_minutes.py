from __future__ import annotations

from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from analytics import buckets, minutes
from analytics.events import MessageEvent
from analytics.models import Minute
from analytics.scheduled import projection
from tests.analytics.builders import NOON, a_trip, an_entry, an_event, ms
from topology.models import Topology

pytestmark = pytest.mark.both_databases

MINUTE = timedelta(minutes=1)


def record(topology: Topology, events: list[MessageEvent]) -> None:
    minutes.count(topology, events, projection.project(topology, events))


def numbers(topology: Topology) -> list[tuple[str, int, int, int, int]]:
    return [
        (f"{row.minute_at:%H:%M}", row.entered, row.left, row.died, row.late)
        for row in Minute.objects.filter(topology=topology, minute_at__gte=NOON).order_by(
            "minute_at"
        )
    ]


def test_batches_add_up_by_the_minute_of_their_recording(topology: Topology) -> None:
    record(topology, a_trip("m1"))
    record(topology, [*a_trip("m2", NOON + 58 * ms(1000)), an_event(kind="published", attempt=0)])
    assert numbers(topology) == [("12:00", 2, 1, 0, 0), ("12:01", 0, 1, 0, 0)]


def test_an_entry_by_a_death_counts_as_died_and_an_exit_a_second_late_as_late(
    topology: Topology,
) -> None:
    death: dict[str, Any] = {"death_reason": "rejected", "death_queue": "orders"}
    record(topology, [an_entry("m1", **death)])
    record(topology, a_trip("m2", late=ms(1000)))
    record(topology, a_trip("m3", late=ms(1001)))
    assert numbers(topology) == [("12:00", 3, 2, 1, 1)]


def test_minutes_before_the_one_asked_for_are_left_out(topology: Topology) -> None:
    record(topology, [an_entry("m1", NOON - MINUTE), an_entry("m2", NOON)])
    assert [row[0] for row in numbers(topology)] == ["12:00"]


def test_the_last_hour_has_each_minute_in_its_place(topology: Topology) -> None:
    for minutes_ago in (60, 59, 1, 0, -1):
        record(topology, [an_entry(f"m{minutes_ago}", NOON - minutes_ago * MINUTE)])
    record(topology, a_trip("left", NOON))
    local = NOON.astimezone(ZoneInfo("Asia/Kathmandu"))
    flow = minutes.flows([topology], local)[topology.pk]
    assert [place for place, counts in enumerate(flow.minutes) if counts.entered] == [0, 58, 59]
    assert (flow.recent, flow.hour.entered, flow.most) == ((3, 1, 0, 0), 4, 2)


def test_lateness_of_the_hour_adds_up_by_bucket(topology: Topology) -> None:
    record(topology, a_trip("m1", late=ms(3)))
    record(topology, a_trip("m2", late=ms(3)))
    record(topology, a_trip("m3", NOON + MINUTE, late=ms(1500)))
    record(topology, [an_event(kind="published", attempt=0, tracking_id="watched")])
    flow = minutes.flows([topology], NOON + 2 * MINUTE)[topology.pk]
    expected = {buckets.bucket_of(3): 2, buckets.bucket_of(1500): 1}
    assert flow.lateness == expected
    assert flow.until(NOON).lateness == expected
    assert minutes.flows([topology], NOON + 62 * MINUTE)[topology.pk].lateness == {}
