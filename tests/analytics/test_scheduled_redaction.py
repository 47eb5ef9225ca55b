"""What rules hide on the pages of what waits, in its searches and in its exports."""

from __future__ import annotations

import csv
import gzip
import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from analytics.models import ScheduledMessage
from analytics.scheduled import projection
from tests.analytics.builders import an_entry, ms
from tests.site.page_setup import know
from topology.definitions import Arguments, Binding, Exchange, Queue
from topology.models import Broker, Grant, RedactionKind, RedactionRule, Role, Topology

pytestmark = pytest.mark.both_databases

LATER = datetime.now(UTC) + timedelta(hours=1)
HIDDEN = "redacted"
SECRETS = ("s3cret", "4111", "sales-desk")
HEADERS = {
    "Authorization": "s3cret",
    "tenant": "seven",
    "nested": {"authorization": "s3cret"},
    "NServiceBus.OriginatingEndpoint": "sales-desk",
}
BODY = b'{"card": "4111", "order": 17}'


@pytest.fixture
def other(topology: Topology) -> Topology:
    """A topology of another broker, where as much waits as in the first."""
    broker = Broker.objects.create(slug="other", name="Other", amqp_addresses="127.0.0.1")
    params = {"name": "bills", "delay": "5s", "routing_key": "bills"}
    other = Topology.objects.create(
        broker=broker, slug="bills", kind="retry_pair", name="bills", params=params
    )
    for row, name in ((topology, "main-1"), (other, "other-1")):
        projection.project(row, [an_entry(name, LATER, **reported())])
    return other


def reported(body: bytes = BODY) -> dict[str, Any]:
    return {
        "headers_json": json.dumps(HEADERS),
        "published_by": "sales-desk",
        "body_base64": b64encode(body).decode(),
        "size_bytes": len(body),
    }


def reader(role: Role, broker: Broker | None = None) -> Client:
    user = User.objects.create_user(f"{role.label} of {broker or 'all'}")
    Grant.objects.create(user=user, broker=broker, role=role)
    client = Client()
    client.force_login(user)
    return client


def hide(
    header: str = "", body: str = "", broker: Broker | None = None, least: Role = Role.ADMIN
) -> None:
    for kind, pattern in ((RedactionKind.HEADER, header), (RedactionKind.BODY, body)):
        if pattern:
            RedactionRule.objects.create(
                kind=kind, pattern=pattern, broker=broker, least_role=least
            )


def shown(client: Client, **query: str) -> str:
    return client.get(reverse("analytics:scheduled"), query).content.decode()


def message_page(client: Client, name: str = "main-1", *, look: bool = False) -> str:
    row = ScheduledMessage.objects.get(message_id=name)
    address = reverse("analytics:scheduled_message", args=[row.pk])
    return client.get(address, {"body": "1"} if look else {}).content.decode()


def exported(client: Client, **query: str) -> dict[str, dict[str, Any]]:
    """By message id, of JSON lines."""
    answer = client.get(reverse("analytics:scheduled"), query | {"as": "jsonl"})
    assert answer.status_code == 200
    rows = [json.loads(line) for line in answer.getvalue().splitlines()]
    return {row["message_id"]: row for row in rows}


@pytest.mark.parametrize("where", ["everywhere", "on this broker"])
@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_what_is_hidden_from_a_reader_is_on_no_page_and_in_no_export(
    topology: Topology, other: Topology, role: Role, where: str
) -> None:
    hide("authorization", "card", None if where == "everywhere" else topology.broker)
    hide("NServiceBus.*", broker=topology.broker)
    client = reader(role)
    text = message_page(client) + message_page(client, look=True)
    assert not any(secret in text for secret in SECRETS)
    assert "seven" in text
    assert "&quot;order&quot;: 17" in text
    assert "A redaction rule hides parts of this message from you." in text
    assert shown(client, topology="orders").count("sales-desk") == 0
    for form in ("jsonl", "csv"):
        query = {"as": form, "topology": "orders"}
        data = client.get(reverse("analytics:scheduled"), query).getvalue().decode()
        assert not any(secret in data for secret in SECRETS)
        assert HIDDEN in data


def test_the_route_of_a_message_is_not_drawn_by_hidden_headers(topology: Topology) -> None:
    """A headers exchange sends it where what the reader sees would not."""
    matched = Arguments({"x-match": "all", "Authorization": "s3cret"})
    know(
        topology.broker,
        Exchange("by", "headers"),
        Queue("vault"),
        Binding("by", "vault", "", arguments=matched),
    )
    entry = an_entry("main-1", LATER, **reported() | {"exchange": "by", "routing_key": ""})
    projection.project(topology, [entry])
    client = reader(Role.VIEWER)
    assert "Route as diagram" in message_page(client)
    assert "The route is not drawn" not in message_page(client)
    hide("authorization")
    assert "Route as diagram" not in message_page(client)
    assert "The route is not drawn" in message_page(client)


def test_an_admin_sees_all_of_it(topology: Topology, other: Topology) -> None:
    hide("*", "$")
    client = reader(Role.ADMIN)
    assert HIDDEN not in message_page(client, look=True)
    assert "4111" in message_page(client, look=True)
    assert exported(client)["main-1"]["headers"] == HEADERS
    assert exported(client, text="s3cret").keys() == {"main-1", "other-1"}


def test_a_rule_below_operators_hides_nothing_from_them(
    topology: Topology, other: Topology
) -> None:
    hide("authorization", least=Role.OPERATOR)
    assert exported(reader(Role.VIEWER))["main-1"]["headers"]["Authorization"] == HIDDEN
    operator = reader(Role.OPERATOR)
    assert exported(operator)["main-1"]["headers"] == HEADERS
    assert "main-1" in shown(operator, text="s3cret")


def test_each_row_is_masked_by_the_rules_and_the_role_of_its_broker(
    topology: Topology, other: Topology
) -> None:
    hide("authorization", broker=topology.broker)
    rows = exported(reader(Role.OPERATOR))
    assert rows["main-1"]["headers"]["nested"] == {"authorization": HIDDEN}
    assert rows["main-1"]["masked"] is True
    assert rows["other-1"]["headers"] == HEADERS
    assert rows["other-1"]["masked"] is False
    hide("tenant")
    client = reader(Role.VIEWER)
    user = User.objects.get(pk=client.session["_auth_user_id"])
    Grant.objects.create(user=user, broker=other.broker, role=Role.ADMIN)
    rows = exported(client)
    assert rows["main-1"]["headers"]["tenant"] == HIDDEN
    assert rows["other-1"]["headers"]["tenant"] == "seven"


def test_a_table_says_which_of_its_lines_are_masked(topology: Topology, other: Topology) -> None:
    hide("authorization", broker=topology.broker)
    answer = reader(Role.VIEWER).get(reverse("analytics:scheduled"), {"as": "csv"})
    rows = csv.DictReader(StringIO(answer.getvalue().decode()))
    assert {row["message_id"]: row["masked"] for row in rows} == {"main-1": "yes", "other-1": ""}


@pytest.mark.parametrize(
    ("body", "is_whole"),
    [
        (b"card 4111", True),
        (b'{"card": "4111"', True),
        (b"\xff4111", True),
        (gzip.compress(BODY, mtime=0), False),
        (gzip.compress(b"card 4111", mtime=0), True),
    ],
)
def test_a_body_is_hidden_as_far_as_it_can_be_read(
    topology: Topology, other: Topology, body: bytes, is_whole: bool
) -> None:
    hide(body="card")
    projection.project(topology, [an_entry("odd", LATER, **reported(body))])
    text = message_page(reader(Role.VIEWER), "odd", look=True)
    assert "4111" not in text
    assert ("A redaction rule hides the whole body" in text) is is_whole
    assert ("&quot;order&quot;: 17" in text) is not is_whole


@pytest.mark.parametrize(
    ("source", "header"),
    [("timestamp_in_ms", "timestamp_in_ms"), ("delayboard", "delayboard-published-at-ms")],
)
def test_the_time_of_publication_is_hidden_with_the_header_that_tells_it(
    topology: Topology, other: Topology, source: str, header: str
) -> None:
    at = datetime(2026, 11, 20, 7, 8, 9, tzinfo=UTC)
    published = {"published_at": at, "published_at_source": source}
    projection.project(topology, [an_entry("timed", LATER, **published)])
    hide(header)
    client = reader(Role.VIEWER)
    assert exported(client)["timed"]["published_at"] == HIDDEN
    assert exported(client)["main-1"]["published_at"] is None
    assert "07:08" not in message_page(client, "timed") + shown(client)
    assert "07:08" in message_page(reader(Role.ADMIN), "timed")


def test_a_text_is_not_searched_where_something_is_hidden(
    topology: Topology, other: Topology
) -> None:
    hide(body="card", broker=topology.broker)
    client = reader(Role.VIEWER)
    for query in ({"text": "s3cret"}, {"text": "4111"}, {"text": "nowhere"}):
        answer = client.get(reverse("analytics:scheduled"), query)
        desk = answer.context["listing"]
        assert not desk.lines
        assert desk.summary is None
        assert answer.context["calendar"] is None
        assert "The rules are those of “Main”." in answer.content.decode()
    for form in ("csv", "jsonl"):
        query = {"text": "4111", "as": form}
        answer = client.get(reverse("analytics:scheduled"), query)
        assert answer.status_code == 400
        assert "you cannot search for words" in answer.content.decode()


def test_a_text_is_searched_where_nothing_is_hidden(topology: Topology, other: Topology) -> None:
    hide(body="card", broker=topology.broker)
    client = reader(Role.VIEWER)
    assert exported(client, text="4111", topology="bills").keys() == {"other-1"}
    assert "other-1" in shown(client, text="4111", topology="bills")
    assert "other-1" in shown(reader(Role.VIEWER, other.broker), text="4111")
    assert "you cannot search for words" in shown(client, text="4111", topology="orders")


@pytest.mark.parametrize(
    ("text", "is_allowed"),
    [
        ("header.tenant:seven", True),
        ("body.order:17 id:main-1", True),
        ("header.Authorization:s3*", False),
        ("-header.authorization:x", False),
        ("header.nested.authorization:s3cret", False),
        ("body.card:4111", False),
        ("body.card.last:>1", False),
        ("header.tenant:seven s3cret", False),
    ],
)
def test_a_field_is_searched_where_no_rule_hides_it(
    topology: Topology, other: Topology, text: str, is_allowed: bool
) -> None:
    hide("authorization", "card", broker=topology.broker)
    query = {"text": text, "topology": "orders"}
    client = reader(Role.VIEWER)
    answer = client.get(reverse("analytics:scheduled"), query)
    assert [line.name for line in answer.context["listing"].lines] == ["main-1"] * is_allowed
    assert ("The rules are those of “Main”." in answer.content.decode()) is not is_allowed
    answer = client.get(reverse("analytics:scheduled"), query | {"as": "jsonl"})
    assert answer.status_code == (200 if is_allowed else 400)


def test_everything_else_can_be_asked_for(topology: Topology, other: Topology) -> None:
    hide("*", "$")
    client = reader(Role.VIEWER)
    assert exported(client, destination="orders", topology="orders").keys() == {"main-1"}
    assert "main-1" in shown(client, until="+2h")
    assert "main-1" not in shown(client, overdue="1")


def test_rules_are_read_once_for_a_page(topology: Topology, other: Topology) -> None:
    hide("authorization")
    hide("tenant", broker=topology.broker)
    client = reader(Role.VIEWER)
    counted = []
    for number in (0, 20):
        entries = [an_entry(f"more-{n}", LATER + ms(n), **reported()) for n in range(number)]
        projection.project(other, entries)
        with CaptureQueriesContext(connection) as queries:
            shown(client)
        counted.append(len(queries))
        assert sum("redactionrule" in query["sql"] for query in queries.captured_queries) == 1
    assert counted[0] == counted[1]


def test_the_command_hides_nothing(topology: Topology, other: Topology) -> None:
    hide("*", "$")
    out = StringIO()
    call_command("scheduled", "--json", "--text", "s3cret", stdout=out, stderr=StringIO())
    first = json.loads(out.getvalue().splitlines()[0])
    assert first["headers"] == HEADERS
    assert first["masked"] is False
