from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import unquote

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from analytics import buckets
from analytics.models import ScheduledMessage
from analytics.results import messages
from analytics.results.messages import Bucket, find, read_bucket
from analytics.results.period import Period
from analytics.results.read import Selection
from analytics.results.section import VIEWS
from analytics.scheduled import projection
from tests.analytics import result_rows
from tests.analytics.builders import DELAY, an_entry, an_exit, ms
from topology.models import Broker, Grant, Role, Topology

YESTERDAY = datetime.now(UTC).date() - timedelta(days=1)
BEGIN = datetime(YESTERDAY.year, YESTERDAY.month, YESTERDAY.day, tzinfo=UTC)
DAY = Period("custom", YESTERDAY, YESTERDAY)


def record(topology: Topology, name: str, at: datetime, late_ms: float, **changes: Any) -> None:
    projection.project(
        topology,
        [
            an_entry(name, at, **changes),
            an_exit(name, at + DELAY + ms(late_ms), **changes),
        ],
    )


@pytest.fixture
def recorded(topology: Topology) -> Topology:
    """Of yesterday: late messages at 05:30 and 23:59, an early one, a retry, and one that waits."""
    record(topology, "too-old", BEGIN - ms(1), 0)
    record(topology, "late-2100", BEGIN + timedelta(hours=5, minutes=30), 2100)
    record(topology, "early", BEGIN + timedelta(hours=6), -60)
    record(topology, "retry", BEGIN + timedelta(hours=7), 0.5, attempt=2)
    record(topology, "late-2600", BEGIN + timedelta(hours=23, minutes=59), 2600)
    record(topology, "backlog", BEGIN + timedelta(hours=5), 2100, caught_up=False)
    projection.project(topology, [an_entry("waits", BEGIN + timedelta(hours=5))])
    record(topology, "too-new", BEGIN + timedelta(days=1), 0)
    return topology


def names(bucket: Bucket, selection: Selection | None = None, **changes: Any) -> list[str]:
    given = {"kept_from": None} | changes
    brokers = given.pop("brokers", None) or list(Broker.objects.all())
    found = find(DAY, brokers, selection or Selection(), bucket, given["kept_from"])
    return sorted(row.message_id for row in found.rows)


def test_each_bucket_of_a_report_has_the_messages_it_counted(recorded: Topology) -> None:
    measured = ["early", "late-2100", "late-2600", "retry"]
    assert names(Bucket("measured")) == measured
    assert names(Bucket("retried")) == ["retry"]
    assert names(Bucket("retried", attempt=3)) == []
    late = ["late-2100", "late-2600"]
    assert names(Bucket("measured", late_from=buckets.ON_TIME)) == sorted([*late, "retry"])
    assert names(Bucket("measured", late_from=buckets.bucket_of(2100))) == late
    assert names(Bucket("measured", late_from=buckets.bucket_of(2600))) == ["late-2600"]
    between = Bucket("measured", late_from=buckets.ON_TIME, late_to=buckets.bucket_of(2600))
    assert names(between) == ["late-2100", "retry"]
    of_delay = next(n for n, edge in enumerate(buckets.DELAY_EDGES_MS) if ms(edge) > DELAY)
    assert names(Bucket("measured", delay=of_delay)) == measured
    assert names(Bucket("measured", delay=of_delay + 1)) == []
    assert names(Bucket("measured"), Selection(topology="orders")) == measured
    for other in (Selection(topology="x"), Selection(pattern="x"), Selection(destination="x")):
        assert names(Bucket("measured"), other) == []


def test_hours_are_those_of_the_time_zone_of_the_reports(recorded: Topology, settings: Any) -> None:
    assert names(Bucket("measured", hour="05:00")) == ["late-2100"]
    settings.NIGHTLY_TIME_ZONE = "Asia/Kolkata"
    assert names(Bucket("measured", hour="04:30")) == ["late-2600"]


def test_messages_of_other_brokers_and_older_than_their_retention_are_not_listed(
    recorded: Topology,
) -> None:
    other = Broker.objects.create(
        slug="b", name="B", amqp_addresses="127.0.0.1", management_urls="http://127.0.0.1:15673"
    )
    assert names(Bucket("measured"), brokers=[other]) == []
    assert names(Bucket("measured"), kept_from=BEGIN + timedelta(days=1)) == []


def test_a_page_reads_a_bounded_part_and_says_so(
    recorded: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers = list(Broker.objects.all())
    assert find(DAY, brokers, Selection(), Bucket("measured"), None).is_all
    monkeypatch.setattr(messages, "SHOWN", 2)
    shown = find(DAY, brokers, Selection(), Bucket("measured"), None)
    assert [row.message_id for row in shown.rows] == ["late-2600", "retry"]
    assert not shown.is_all
    monkeypatch.setattr(messages, "MOST_READ", 3)
    assert not find(DAY, brokers, Selection(), Bucket("retried", attempt=9), None).is_all


def test_the_first_id_of_a_moment_is_found_among_gaps(topology: Topology) -> None:
    for number in range(40):
        record(topology, f"m{number}", BEGIN + timedelta(minutes=number), 0)
    ScheduledMessage.objects.filter(message_id__in=[f"m{n}" for n in range(5, 35)]).delete()
    projection.project(topology, [an_exit("exit only", BEGIN + timedelta(minutes=50))])
    ids = {row.message_id: row.pk for row in ScheduledMessage.objects.all()}
    assert messages._first_id(BEGIN) == ids["m0"]
    assert messages._first_id(BEGIN + timedelta(minutes=20)) <= ids["m35"]
    assert messages._first_id(BEGIN + timedelta(minutes=20)) > ids["m4"]
    assert (
        messages._first_id(BEGIN + timedelta(hours=2))
        == ids["exit only"] + 1 - (ids["exit only"] > ids["m39"])
        or messages._first_id(BEGIN + timedelta(hours=2)) > ids["m39"]
    )


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"kind": "other"},
        {"kind": "measured", "late_to": str(len(buckets.EDGES_MS) + 1)},
        *({"kind": "measured", "late_from": bad} for bad in ("-1", "x", "٣", "999", "1" * 5000)),
        {"kind": "scheduled"},
        {"kind": "measured", "delay": "10"},
    ],
)
def test_a_row_that_no_table_has_is_refused(values: dict[str, str], broker: Broker) -> None:
    assert read_bucket(values) is None


@pytest.fixture
def viewer(broker: Broker) -> Client:
    user = User.objects.create_user("vera")
    Grant.objects.create(user=user, broker=broker, role=Role.VIEWER)
    client = Client()
    client.force_login(user)
    return client


def test_every_chart_links_its_rows_to_the_messages_behind_them(
    viewer: Client, recorded: Topology
) -> None:
    group = {"broker": "main", "topology": "orders"}
    result_rows.days([YESTERDAY], [group], late_ms=2100.0)
    query = {"from": str(YESTERDAY), "to": str(YESTERDAY), "topology": "orders"}
    address = reverse("analytics:reports")
    views = [viewer.get(address, query | {"view": view}) for view in VIEWS]
    text = "".join(view.content.decode() for view in views)
    found = [unescape(link) for link in re.findall(r'href="(/reports/messages/[^"]+)"', text)]
    links = {re.sub(r"=[^&]*", "", link[link.index("kind=") :]): link for link in found}
    cell = "kind&range&from&to&hour"
    of_cells = {cell, f"{cell}&late_to", f"{cell}&late_from&late_to"}
    of_points = {"kind&late_from&hour", "kind&late_from&delay"}
    assert set(links) == {"kind&delay", "kind&attempt"} | of_cells | of_points
    for link in links.values():
        assert viewer.get(link).status_code == 200
    late = next(link for link in found if "&kind=measured&delay=" in link)
    page = viewer.get(f"{late}&late_from={buckets.bucket_of(2100)}&hour=05:00").content.decode()
    assert "late-2100" in page
    assert "2.1s" in page
    assert "late-2600" not in page
    assert f"?from={YESTERDAY}&amp;to={YESTERDAY}&amp;topology=orders" in page
    bands = [link for link in found if "&hour=02:00&" in unquote(link) and "late_to" in link]
    lists = [viewer.get(one.replace("02%3A00", "05%3A00")).content.decode() for one in bands]
    assert sum("late-2100" in one for one in lists) == 1


def test_rows_without_kept_messages_have_no_link(viewer: Client, topology: Topology) -> None:
    old = YESTERDAY - timedelta(days=30)
    result_rows.days([old], [{"broker": "main", "topology": "orders"}])
    text = viewer.get(reverse("analytics:reports"), {"from": str(old), "to": str(old)})
    assert "/reports/messages/" not in text.content.decode()


def test_an_invalid_address_is_not_found(viewer: Client) -> None:
    page = reverse("analytics:report_messages")
    assert viewer.get(page).status_code == 404
    assert viewer.get(page, {"kind": "measured", "from": "soon"}).status_code == 404
    text = viewer.get(page, {"kind": "measured", "from": str(date(2020, 1, 1))}).content.decode()
    assert "No recorded message matches." in text
    assert "Delayboard deletes a message 7 days after it left its delay" in text
