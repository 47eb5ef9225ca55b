from __future__ import annotations

import csv
import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.http import StreamingHttpResponse
from django.test import AsyncRequestFactory, Client
from django.urls import reverse

from analytics.models import Gap, Recording, ScheduledMessage
from analytics.scheduled import projection
from analytics.scheduled.pages.export import CHUNK, FIELDS
from analytics.scheduled.pages.lines import PAGE
from analytics.views import scheduled, streaming
from tests.analytics.builders import an_entry, ms
from tests.site.page_setup import know
from topology.models import AuditEntry, Grant, RedactionRule, Role, State, Topology

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


def test_a_filter_is_live_only_when_it_is_valid_and_says_what_is_new(viewer: Client) -> None:
    """Whether a new message matches is not known. A list that is not shown has no rows to keep."""
    everything, narrowed = page(viewer), page(viewer, text="x")
    assert "data-live-url" in everything
    assert " new: <a" in everything
    assert "data-live-url" in narrowed
    assert " newly recorded: <a" in narrowed
    invalid = page(viewer, **{"from": "nonsense"})
    assert "data-live-url" not in invalid
    assert "data-live-pause" not in invalid


def test_nothing_waiting_is_said(viewer: Client) -> None:
    assert "No waiting messages" in page(viewer)


def test_deliveries_of_a_deleted_topology_are_not_missed(viewer: Client) -> None:
    blind = {"kind": "delay_queues", "params": {"queue": "mails", "delays": "1h"}}
    Topology.objects.update(**blind, state=State.APPLIED)
    assert "Delivery is not observed for 1 topology." in page(viewer)
    Topology.objects.update(state=State.DELETED)
    assert "Delivery is not observed" not in page(viewer)


def test_what_waits_is_listed_with_its_destination_and_whether_it_is_overdue(
    viewer: Client, topology: Topology
) -> None:
    projection.project(topology, [an_entry("due later", LATER), an_entry("", NOW - ms(60_000))])
    text = page(viewer)
    assert "due later" in text
    assert text.count('<span class="state state-warn">overdue</span>') == 1
    assert "All <strong>2</strong>" in text
    assert "Overdue <strong>1</strong>" in text


def test_a_tap_that_nobody_reads_is_told_so_that_an_empty_list_is_not_believed(
    viewer: Client, topology: Topology
) -> None:
    Topology.objects.update(state=State.APPLIED, applied_at=NOW - timedelta(hours=1))
    reported = "The recorder does not read the tap"
    assert reported in page(viewer)
    Recording.objects.create(topology=topology, read_at=datetime.now(UTC))
    assert reported not in page(viewer)
    Recording.objects.update(read_at=datetime.now(UTC) - timedelta(minutes=1))
    assert reported in page(viewer)


def test_a_user_without_a_grant_sees_no_message(topology: Topology) -> None:
    projection.project(topology, [an_entry("secret", NOW)])
    client = Client()
    client.force_login(User.objects.create_user("nobody"))
    text = page(client)
    assert "secret" not in text
    assert "orders" not in text


def test_the_filter_is_in_the_address(viewer: Client, topology: Topology) -> None:
    projection.project(topology, [an_entry("parked_message-1", NOW)])
    assert "parked_message-1" in page(viewer, topology="orders")
    assert "parked_message-1" not in page(viewer, topology="other")


def test_pages_are_walked_by_the_place_of_the_last_row(viewer: Client, topology: Topology) -> None:
    total = PAGE + 3
    projection.project(topology, [an_entry(f"m-{n:03}", NOW + ms(n)) for n in range(total)])
    first = viewer.get(reverse("analytics:scheduled"))
    text = first.content.decode()
    assert "m-049" in text
    assert "m-050" not in text
    place = first.context["listing"].found.edge
    second = viewer.get(reverse("analytics:scheduled"), {"after": place})
    text = second.content.decode()
    assert "m-049" not in text
    assert f"m-{total - 1:03}" in text
    assert "First page" in text
    last = viewer.get(reverse("analytics:scheduled"), {"sort": "-due"})
    names = [line.name for line in last.context["listing"].lines]
    assert names == [f"m-{n:03}" for n in range(total - 1, 2, -1)]
    assert 'aria-sort="descending"' in last.content.decode()
    rest = {"sort": "-due", "after": last.context["listing"].found.edge}
    names = [
        line.name for line in viewer.get(last.request["PATH_INFO"], rest).context["listing"].lines
    ]
    assert names == ["m-002", "m-001", "m-000"]


@pytest.mark.parametrize("after", ["x", "2026-11-20T00:00:00,1", "2026-11-20T00:00:00Z,z", ","])
def test_a_place_that_is_none_is_the_first_page(
    viewer: Client, topology: Topology, after: str
) -> None:
    projection.project(topology, [an_entry("parked_message-1", NOW)])
    assert "parked_message-1" in page(viewer, after=after)


def test_a_gap_whose_copies_can_still_be_waiting_is_shown(
    viewer: Client, topology: Topology
) -> None:
    Topology.objects.update(state=State.APPLIED, params=topology.params | {"delay": "2h"})
    Recording.objects.create(topology=topology, read_at=datetime.now(UTC))
    for age in (timedelta(hours=1), timedelta(days=3)):
        Gap.objects.create(
            topology=topology, from_at=NOW - 2 * age, until_at=NOW - age, why=f"Full {age.days}."
        )
    text = page(viewer)
    assert "Full 0." in text
    assert "Full 3." not in text
    assert "incomplete" in text


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, {"m1", "m2", "m3"}),
        ({"destination": "parked_messages"}, {"m2"}),
        ({"from": "+30m"}, {"m2", "m3"}),
        ({"until": "+30m"}, {"m1"}),
        ({"from": "+30m", "until": "+90m"}, {"m2"}),
        ({"overdue": "1"}, {"m1"}),
        ({"text": "TENANT-7"}, {"m3"}),
        ({"text": "corr-2"}, {"m2"}),
        ({"text": "m1"}, {"m1"}),
        ({"text": "nowhere"}, set()),
        ({"text": "tenant", "destination": "parked_messages"}, set()),
    ],
)
def test_every_part_of_the_filter_leaves_what_it_says(
    viewer: Client, topology: Topology, query: dict[str, str], found: set[str]
) -> None:
    headers = '{"tenant":"Tenant-7"}'
    entries = [
        an_entry("m1", NOW - ms(60_000)),
        an_entry("m2", LATER, destination="parked_messages", correlation_id="corr-2"),
        an_entry("m3", LATER + timedelta(hours=1), headers_json=headers),
    ]
    projection.project(topology, entries)
    answer = viewer.get(reverse("analytics:scheduled"), query)
    shown = answer.context["listing"]
    assert {line.name for line in shown.lines} == found
    assert shown.matching == len(found)
    assert (shown.summary is None) == ("text" in query)


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ({"from": "tomorrow"}, "“tomorrow” is not a time."),
        ({"from": "+2h", "until": "+1h"}, "later than the start"),
        ({"text": "x" * 501}, "longer than 500 characters"),
        ({"text": "tenant:7"}, "the field is unknown. Use one of id, correlation,"),
    ],
)
def test_what_cannot_be_read_is_kept_and_named_and_lists_nothing(
    viewer: Client, topology: Topology, query: dict[str, str], sentence: str
) -> None:
    projection.project(topology, [an_entry("parked_message-1", LATER)])
    text = page(viewer, **query)
    assert sentence in text
    assert "parked_message-1" not in text
    assert all(f'value="{value}"' in text for value in query.values())
    assert viewer.get(reverse("analytics:scheduled"), query | {"as": "csv"}).status_code == 400


def test_an_hour_of_the_calendar_leads_to_its_messages(viewer: Client, topology: Topology) -> None:
    projection.project(topology, [an_entry(f"m{n}", LATER + ms(n)) for n in range(7)])
    answer = viewer.get(reverse("analytics:scheduled"), {"view": "calendar"})
    assert '<th scope="col">Message</th>' not in answer.content.decode()
    hours = [cell for day in answer.context["calendar"].days for cell in day.cells]
    (hour,) = [cell for cell in hours if cell.number]
    assert hour.number == 7
    led_to = viewer.get(reverse("analytics:scheduled") + hour.url).context["listing"]
    assert len(led_to.lines) == led_to.summary.matching == 7


@pytest.mark.parametrize("view", ["calendar", "chart"])
def test_another_view_reads_no_rows_and_no_page(
    viewer: Client, topology: Topology, view: str
) -> None:
    projection.project(topology, [an_entry("parked_message-1", LATER)])
    answer = viewer.get(reverse("analytics:scheduled"), {"view": view, "after": "99999"})
    listing = answer.context["listing"]
    assert (list(listing.lines), listing.summary.waiting) == ([], 1)
    assert "No more messages" not in answer.content.decode()
    assert answer.context["calendar"].total == 1


def test_the_list_reads_no_calendar(viewer: Client, topology: Topology) -> None:
    assert viewer.get(reverse("analytics:scheduled")).context["calendar"] is None


def test_a_calendar_that_cannot_be_drawn_says_so(viewer: Client, topology: Topology) -> None:
    assert "No recorded message is due in these seven days." in page(viewer, view="calendar")
    assert "The calendar cannot be narrowed" in page(viewer, view="calendar", overdue="1")


def test_another_page_of_a_search_goes_on_where_the_first_ended(
    viewer: Client, topology: Topology
) -> None:
    total = PAGE + 5
    projection.project(topology, [an_entry(f"found-{n:03}", LATER + ms(n)) for n in range(total)])
    first = viewer.get(reverse("analytics:scheduled"), {"text": "found"}).context["listing"]
    assert len(first.lines) == PAGE
    query = {"text": "found", "after": first.found.edge}
    second = viewer.get(reverse("analytics:scheduled"), query).context["listing"]
    assert [line.name for line in second.lines] == [f"found-{n:03}" for n in range(PAGE, total)]
    assert second.found.edge is None


def test_the_export_holds_everything_that_was_asked_for(viewer: Client, topology: Topology) -> None:
    entries = [an_entry(f"m-{n:04}", LATER + ms(n)) for n in range(CHUNK + 3)]
    projection.project(topology, [*entries, an_entry("other", LATER, destination="=1+1")])
    wanted = {"destination": "orders", "as": "jsonl"}
    answer = viewer.get(reverse("analytics:scheduled"), wanted)
    read = [json.loads(line) for line in answer.getvalue().splitlines()]
    assert [row["message_id"] for row in read] == [event.message_id for event in entries]
    assert tuple(read[0]) == FIELDS
    assert "attachment" in answer["Content-Disposition"]
    answer = viewer.get(reverse("analytics:scheduled"), {"text": "other", "as": "csv"})
    names, row = csv.reader(answer.getvalue().decode().splitlines())
    assert tuple(names) == FIELDS
    assert row[FIELDS.index("destination")] == "'=1+1"
    assert viewer.get(reverse("analytics:scheduled"), {"as": "xlsx"}).status_code == 404


def test_an_export_is_streamed_to_asynchronous_servers_too(topology: Topology) -> None:
    projection.project(topology, [an_entry("m1", LATER), an_entry("m2", LATER)])
    request = AsyncRequestFactory().get(reverse("analytics:scheduled"), {"as": "jsonl"})
    request.user = User.objects.create(username="root", is_superuser=True)
    answer = scheduled.scheduled(request)
    assert isinstance(answer, StreamingHttpResponse)
    assert answer.is_async


async def test_what_is_streamed_is_made_piece_by_piece() -> None:
    made = []

    def parts() -> Iterator[bytes]:
        for number in range(3):
            made.append(number)
            yield str(number).encode()

    async for part in streaming.one_by_one(parts()):
        assert made[-1] == int(part)
    assert made == [0, 1, 2]


def test_a_message_has_a_page_of_its_own(viewer: Client, topology: Topology) -> None:
    event = an_entry(
        "m1",
        LATER,
        headers_json='{"tenant":"seven","nested":{"a":[1]}}',
        published_by="sales",
        exchange="events",
        body_base64=b64encode(b'{"order":1}').decode(),
    )
    projection.project(topology, [event])
    row = ScheduledMessage.objects.get()
    address = reverse("analytics:scheduled_message", args=[row.pk])
    text = viewer.get(address).content.decode()
    assert all(part in text for part in ("seven", "sales", "events", "Show body"))
    assert "order&quot;" not in text
    assert not AuditEntry.objects.filter(action="body viewed").exists()
    text = viewer.get(address, {"body": "1"}).content.decode()
    assert "&quot;order&quot;: 1" in text
    assert AuditEntry.objects.get(action="body viewed").what == "orders: m1"
    stranger = Client()
    stranger.force_login(User.objects.create_user("nobody"))
    assert stranger.get(address, {"body": "1"}).status_code == 404


def test_the_route_of_a_message_is_drawn_with_its_place(viewer: Client, topology: Topology) -> None:
    route = topology.pattern.route(topology.parsed, timedelta(hours=1), "orders")
    know(topology.broker, *topology.pattern.definitions(topology.parsed), *route.declares)
    entry = an_entry("m1", NOW, exchange=route.exchange, routing_key=route.routing_key)
    projection.project(topology, [entry])
    row = ScheduledMessage.objects.get()
    address = reverse("analytics:scheduled_message", args=[row.pk])
    text = viewer.get(address).content.decode()
    assert "1: at once, now here" in text
    ScheduledMessage.objects.update(left_at=LATER)
    text = viewer.get(address).content.decode()
    assert "1: at once" in text
    assert "now here" not in text


def test_a_message_of_a_client_library_is_shown_by_its_id_and_type(
    viewer: Client, topology: Topology
) -> None:
    headers = {"task": "shop.place_order", "id": "4b1d-celery"}
    event = an_entry("", LATER, headers_json=json.dumps(headers))
    projection.project(topology, [event])
    row = ScheduledMessage.objects.get()
    listed = viewer.get(reverse("analytics:scheduled")).content.decode()
    page = viewer.get(reverse("analytics:scheduled_message", args=[row.pk])).content.decode()
    for text in (listed, page):
        assert "4b1d-celery" in text
        assert "shop.place_order" in text
    assert "Celery" in page
    RedactionRule.objects.create(kind="header", pattern="id", least_role=Role.ADMIN)
    listed = viewer.get(reverse("analytics:scheduled")).content.decode()
    assert "4b1d-celery" not in listed
    assert row.content_id[:12] in listed


def test_a_body_that_was_not_kept_is_not_offered(viewer: Client, topology: Topology) -> None:
    projection.project(topology, [an_entry("m1", LATER)])
    address = reverse("analytics:scheduled_message", args=[ScheduledMessage.objects.get().pk])
    assert "The body is not stored." in viewer.get(address, {"body": "1"}).content.decode()
    assert not AuditEntry.objects.filter(action="body viewed").exists()
