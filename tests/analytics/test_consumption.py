"""How much the consumers of a queue took in their best minute."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from analytics.consumption import ConsumptionMeter, Reading, best_minutes, measure
from tests.topology.builders import a_snapshot
from topology.definitions import Definitions
from topology.models import Topology
from topology.snapshot import QueueNumbers, Snapshot

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("after", "consumed", "found", "begins_anew"),
    [
        (MINUTE / 2, 150, {}, False),
        (MINUTE, 160, {"work": 60}, True),
        (MINUTE * 1.5, 190, {"work": 60}, True),
        (MINUTE * 3, 400, {}, True),
        (MINUTE, 5, {}, True),
        (MINUTE, 100, {}, True),
    ],
)
def test_a_minute_is_measured_between_two_readings_of_the_counter(
    after: timedelta, consumed: int, found: dict[str, int], begins_anew: bool
) -> None:
    begun = {"work": Reading(NOW, 100), "deleted": Reading(NOW, 1)}
    numbers = {"work": QueueNumbers(consumed=consumed), "unknown": QueueNumbers()}
    peaks, following = measure(begun, numbers, NOW + after)
    assert peaks == found
    assert following == {"work": Reading(NOW + after, consumed) if begins_anew else begun["work"]}


def test_the_best_minute_of_all_days_is_stored(topology: Topology) -> None:
    meter = ConsumptionMeter()
    for minute, consumed in enumerate([0, 50, 80, 80 + 70, 80 + 71]):
        meter.read(topology.broker, a_reading(NOW + minute * MINUTE, consumed))
    assert best_minutes([topology.broker]) == {(topology.broker.pk, "work"): 70}
    again = ConsumptionMeter()
    for minute, consumed in enumerate([0, 60]):
        again.read(topology.broker, a_reading(NOW + minute * MINUTE, consumed))
    assert best_minutes([topology.broker]) == {(topology.broker.pk, "work"): 70}
    for minute, consumed in enumerate([0, 90]):
        again.read(topology.broker, a_reading(NOW + timedelta(days=1, minutes=minute), consumed))
    assert best_minutes([topology.broker]) == {(topology.broker.pk, "work"): 90}
    assert best_minutes([]) == {}


def a_reading(at: datetime, consumed: int) -> Snapshot:
    numbers = {"work": QueueNumbers(consumed=consumed)}
    return replace(a_snapshot(Definitions(), numbers), taken_at=at)
