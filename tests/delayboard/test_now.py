"""What the first page says is wrong, and what will be."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from analytics.disk import Room
from analytics.models import DueCount
from analytics.scheduled.due import change
from delayboard import now
from delayboard.models import Duty
from delayboard.views.now import said
from topology import latest
from topology.latest import Latest
from topology.models import Broker, Topology

DISK_ERROR = "The event log in /log cannot be written: no space left on device."


@pytest.fixture(autouse=True)
def a_broker_that_answers(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Latest(None, timezone.now())
    monkeypatch.setattr(latest, "fresh_all", lambda brokers, age: [known for _ in brokers])
    with_room(monkeypatch, 100 * 10**9)


def with_room(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(now, "room", lambda folder: Room(free, 200 * 10**9))


def a_duty(key: str, *, error: str = "", **details: Any) -> Duty:
    at = timezone.now()
    return Duty.objects.create(
        key=key, name=key.title(), beat_at=at, last_error=error, details=details
    )


def overview(broker: Broker) -> now.Overview:
    return now.overview([broker], timezone.now(), timedelta(seconds=5))


def test_a_disk_that_fills_up_is_a_warning_and_a_full_one_a_trouble(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_duty("facts")
    assert (overview(broker).troubles, overview(broker).warnings) == ((), ())
    with_room(monkeypatch, 3 * 10**8)
    seen = overview(broker)
    assert seen.troubles == ()
    assert "nearly full: 300\u00a0MB of 200\u00a0GB are left" in seen.warnings[0]
    with_room(monkeypatch, 99)
    seen = overview(broker)
    assert seen.warnings == ()
    assert "The disk of the event log has no room left" in seen.troubles[0]


def test_one_reason_of_several_duties_is_one_sentence(broker: Broker) -> None:
    for key in ("a", "b", "c"):
        a_duty(key, error=DISK_ERROR)
    a_duty("d", error="Something else.")
    assert overview(broker).troubles == (
        f"A and 2 more fail: {DISK_ERROR}",
        "D fails: Something else.",
    )


def test_being_behind_is_said_beyond_a_few_seconds_only(broker: Broker) -> None:
    a_duty("index", behind_seconds=2.9, behind_bytes=10)
    assert overview(broker).warnings == ()
    Duty.objects.update(details={"behind_seconds": 75.4})
    assert overview(broker).warnings == ("Index is 1m15s behind: what is shown is that old.",)


def test_what_waits_comes_from_the_counts_and_from_no_row(broker: Broker, pair: Topology) -> None:
    at = timezone.now()
    change(pair, {("orders", at - timedelta(hours=2)): 3, ("orders", at + timedelta(hours=2)): 4})
    assert overview(broker).waits == now.Waits(waiting=7, overdue=3)
    DueCount.objects.all().delete()
    assert overview(broker).waits == now.Waits(0, 0)


def test_what_a_duty_says_of_itself_is_for_people() -> None:
    told = {"behind_bytes": 1_234_567, "behind_seconds": 75.34, "caught_up": False, "removed": {}}
    assert said(told) == "1.2\u00a0MB behind, 75.3 s behind, not caught up"
