from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from analytics import scheduled
from analytics.models import Gap, Recording
from analytics.views.scheduled import PAGE
from tests.analytics.builders import an_entry, ms
from topology.models import Grant, Role, State, Topology

NOW = datetime.now(UTC)
LATER = NOW + timedelta(hours=1)


@pytest.fixture
def viewer(topology: Topology) -> Client:
    user = User.objects.create_user("vera")
    Grant.objects.create(user=user, broker=topology.broker, role=Role.VIEWER)
    client = Client()
    client.force_login(user)
    return client


def page(client: Client, **query: str) -> str:
    answer = client.get(reverse("analytics:scheduled"), query)
    assert answer.status_code == 200
    return answer.content.decode()


def test_an_anonymous_visitor_is_sent_to_the_login(client: Client, topology: Topology) -> None:
    answer = client.get(reverse("analytics:scheduled"))
    assert answer.status_code == 302
    assert answer["Location"].startswith(reverse("login"))


def test_nothing_waiting_is_said(viewer: Client) -> None:
    assert "Nothing waits" in page(viewer)


def test_what_waits_is_listed_with_its_destination_and_whether_it_is_overdue(
    viewer: Client, topology: Topology
) -> None:
    scheduled.project(topology, [an_entry("due later", LATER), an_entry("", NOW - ms(60_000))])
    text = page(viewer)
    assert "due later" in text
    assert text.count('<span class="state state-warn">overdue</span>') == 1
    assert "<strong>2</strong><span>waiting</span>" in text
    assert "<strong>1</strong><span>overdue" in text


def test_a_tap_that_nobody_reads_is_told_so_that_an_empty_list_is_not_believed(
    viewer: Client, topology: Topology
) -> None:
    Topology.objects.update(state=State.APPLIED, applied_at=NOW - timedelta(hours=1))
    told = "Nobody reads the taps of"
    assert told in page(viewer)
    Recording.objects.create(topology=topology, read_at=datetime.now(UTC))
    assert told not in page(viewer)
    Recording.objects.update(read_at=datetime.now(UTC) - timedelta(minutes=1))
    assert told in page(viewer)


def test_a_user_without_a_grant_sees_no_message(topology: Topology) -> None:
    scheduled.project(topology, [an_entry("secret", NOW)])
    client = Client()
    client.force_login(User.objects.create_user("nobody"))
    text = page(client)
    assert "secret" not in text
    assert "orders" not in text


def test_the_filter_is_in_the_address(viewer: Client, topology: Topology) -> None:
    scheduled.project(topology, [an_entry("letter-1", NOW)])
    assert "letter-1" in page(viewer, topology="orders")
    assert "letter-1" not in page(viewer, topology="other")


def test_pages_are_walked_by_the_place_of_the_last_row(viewer: Client, topology: Topology) -> None:
    total = PAGE + 3
    scheduled.project(topology, [an_entry(f"m-{n:03}", NOW + ms(n)) for n in range(total)])
    first = viewer.get(reverse("analytics:scheduled"))
    text = first.content.decode()
    assert "m-049" in text
    assert "m-050" not in text
    second = viewer.get(reverse("analytics:scheduled") + first.context["next_query"])
    text = second.content.decode()
    assert "m-049" not in text
    assert f"m-{total - 1:03}" in text
    assert "First page" in text


@pytest.mark.parametrize("after", ["x", "2026-11-20T00:00:00,1", "2026-11-20T00:00:00Z,z", ","])
def test_a_place_that_is_none_is_the_first_page(
    viewer: Client, topology: Topology, after: str
) -> None:
    scheduled.project(topology, [an_entry("m1", NOW)])
    assert "m1" in page(viewer, after=after)


def test_a_gap_of_the_last_day_is_shown(viewer: Client, topology: Topology) -> None:
    for age in (timedelta(hours=1), timedelta(days=3)):
        Gap.objects.create(
            topology=topology, from_at=NOW - 2 * age, until_at=NOW - age, why="The tap was full."
        )
    assert page(viewer).count("The tap was full.") == 1
