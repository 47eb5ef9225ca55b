"""The calendar of due messages on the page Scheduled, and its overloads."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from analytics.models import ConsumptionPeak
from analytics.scheduled import projection
from analytics.scheduled.queries.listing import parse
from analytics.scheduled.summaries import counts
from analytics.views.due_calendar import DueCalendar, due_calendar, short_count
from tests.analytics.builders import an_entry
from topology.models import Grant, Role, State, Topology

NOW = datetime(2026, 11, 20, 12, 0, 30, tzinfo=UTC)
pytestmark = pytest.mark.both_databases


def wait_for(topology: Topology, due_at: datetime, number: int, destination: str) -> None:
    entries = [
        an_entry(f"{destination}-{n}-{due_at}", NOW, due_at=due_at, destination=destination)
        for n in range(number)
    ]
    projection.project(topology, entries)


def peak(topology: Topology, queue: str, messages: int, day: int = 19) -> None:
    ConsumptionPeak.objects.create(
        broker=topology.broker,
        queue=queue,
        day_at=datetime(2026, 11, day, tzinfo=UTC),
        messages=messages,
    )


def read(topology: Topology, /, **query: str) -> DueCalendar:
    found = due_calendar([topology.broker], [topology], parse(query, NOW), NOW)
    assert found is not None
    return found


def test_hours_are_counted_by_day_and_lead_to_their_messages(topology: Topology) -> None:
    wait_for(topology, NOW + timedelta(minutes=5), 3, "work")
    wait_for(topology, NOW + timedelta(days=2), 1, "work")
    wait_for(topology, NOW + timedelta(days=8), 1, "work")
    found = read(topology, destination="work")
    assert [day.total for day in found.days] == [3, 0, 1, 0, 0, 0, 0]
    cell = found.days[0].cells[12]
    assert (cell.text, cell.level) == ("3", 6)
    assert cell.url == (
        "?destination=work&from=2026-11-20T12%3A00%3A00&until=2026-11-20T13%3A00%3A00"
    )
    assert read(topology, destination="other").total == 0
    assert read(topology, topology="other").total == 0


def test_a_minute_above_the_best_minute_of_its_destination_is_an_overload(
    topology: Topology,
) -> None:
    at = datetime(2026, 11, 20, 13, 7, tzinfo=UTC)
    wait_for(topology, at, 4, "work")
    wait_for(topology, at + timedelta(minutes=1), 3, "work")
    wait_for(topology, at, 9, "unmeasured")
    peak(topology, "work", 2)
    peak(topology, "work", 3, day=18)
    found = read(topology)
    ((overload, url),) = found.overloads
    assert (overload.destination, overload.at, overload.due, overload.best) == ("work", at, 4, 3)
    assert "destination=work" in url
    assert [cell.is_overload for cell in found.days[0].cells].index(True) == 13
    assert found.unmeasured == ("unmeasured",)


@pytest.mark.parametrize(("due_in", "is_marked"), [(40, True), (70, False)])
def test_the_list_marks_its_calendar_where_an_overload_is_near(
    topology: Topology, admin_client: Client, due_in: int, *, is_marked: bool
) -> None:
    at = timezone.now().replace(second=0, microsecond=0) + timedelta(minutes=due_in)
    wait_for(topology, at, 4, "work")
    peak(topology, "work", 3)
    page = admin_client.get(reverse("analytics:scheduled")).content.decode()
    assert ("4 messages are due for work in one minute" in page) is is_marked


def test_both_hours_at_the_end_of_summer_time_are_in_one_cell(topology: Topology) -> None:
    first_at = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    for number, at in enumerate((first_at, first_at + timedelta(hours=1)), start=2):
        wait_for(topology, at, number, "work")
    now = first_at - timedelta(hours=9)
    with timezone.override("Europe/Berlin"):
        wanted = parse({}, now)
        found = due_calendar([topology.broker], [topology], wanted, now)
    assert found is not None
    cell = found.days[1].cells[2]
    assert (cell.number, found.total) == (5, 5)
    assert cell.url == "?from=2026-10-25T00%3A00%3A00&until=2026-10-25T02%3A00%3A00"


def test_hours_of_a_zone_between_whole_hours_are_its_own(topology: Topology) -> None:
    # 18:59 and 19:01 in India; links are in UTC.
    for minute in (29, 31):
        wait_for(topology, datetime(2026, 11, 20, 13, minute, tzinfo=UTC), 1, "work")
    with timezone.override("Asia/Kolkata"):
        found = read(topology)
    cells = found.days[0].cells
    assert [cells[hour].number for hour in (17, 18, 19)] == [0, 1, 1]
    assert cells[18].url == "?from=2026-11-20T12%3A30%3A00&until=2026-11-20T13%3A30%3A00"


def test_minutes_are_read_only_where_an_overload_can_be(topology: Topology) -> None:
    at = datetime(2026, 11, 20, 13, 7, tzinfo=UTC)
    wait_for(topology, at, 4, "work")
    peak(topology, "work", 4)
    with CaptureQueriesContext(connection) as done:
        assert not read(topology).overloads
    assert not [one["sql"] for one in done if "/ 60)" in one["sql"]]
    wait_for(topology, at + timedelta(minutes=20), 1, "work")
    assert not read(topology).overloads


def test_hours_beyond_the_counted_messages_are_unknown(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "MOST", 3)
    for hour in range(1, 6):
        wait_for(topology, NOW + timedelta(hours=hour), 1, "work")
    found = read(topology)
    cells = found.days[0].cells
    assert [cells[hour].number for hour in (13, 15, 16, 17, 23)] == [1, 1, 0, None, None]
    assert cells[16].description == "Fri 20 Nov 16:00: at least 0 due"
    assert (cells[17].text, cells[17].description) == ("?", "Fri 20 Nov 17:00: not counted")
    assert cells[17].url == "?from=2026-11-20T17%3A00%3A00&until=2026-11-20T18%3A00%3A00"
    assert found.counted_until == NOW + timedelta(hours=4)
    assert [day.is_counted for day in found.days] == [False] * 7


def test_the_page_shows_the_calendar_and_not_beside_a_search(topology: Topology) -> None:
    Topology.objects.update(state=State.APPLIED)
    projection.project(topology, [an_entry("m1", datetime.now(UTC) + timedelta(hours=1))])
    user = User.objects.create_user("vera")
    Grant.objects.create(user=user, broker=topology.broker, role=Role.VIEWER)
    client = Client()
    client.force_login(user)
    address = reverse("analytics:scheduled")
    seen = {"view": "calendar"}
    assert "Calendar of due messages" in client.get(address, seen).content.decode()
    seen |= {"text": "m1"}
    assert "Calendar of due messages" not in client.get(address, seen).content.decode()


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, ""), (999, "999"), (1000, "1.0k"), (9_960, "10k"), (999_499, "999k"), (999_500, "1.0M")],
)
def test_a_count_fits_its_cell(number: int, text: str) -> None:
    assert short_count(number) == text
