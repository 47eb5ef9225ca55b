from __future__ import annotations

import gzip
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delayboard.models import ParkedMessage, ParkedState, RedactionKind, RedactionRule
from tests.delayboard.builders import a_death, a_message, deaths_header, parked, shop
from tests.site.page_setup import know, signed_in, text_of
from tests.topology import strategies
from tests.topology.builders import NOON
from topology.broker.properties.read import read_properties
from topology.message import Message
from topology.models import AuditEntry, Broker, Role

pytestmark = pytest.mark.django_db


def page(broker: Broker, row: ParkedMessage, client: Client | None = None) -> str:
    client = client or signed_in(Role.OPERATOR)
    return text_of(client.get(reverse("parked_message", args=[broker.slug, row.pk])))


def plain(text: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", text).split())


def one(broker: Broker, *args: Any, **stated: Any) -> ParkedMessage:
    (row,) = parked(broker, a_message(*args, **stated))
    return row


def test_controls_in_headers_can_be_seen(broker: Broker) -> None:
    know(broker, *shop())
    text = page(broker, one(broker, headers={"file": "abc\u202egnp.exe", "null": "a\x00b"}))
    assert "\u202e" not in text
    assert "\x00" not in text
    assert "abc\ufffdgnp.exe" in text
    assert "a\u2400b" in text


def test_a_message_is_shown_with_its_life_its_way_and_what_a_replay_would_do(
    broker: Broker,
) -> None:
    know(broker, *shop())
    row = one(broker, b'{"amount": 1.10, "items": [1, {"a": null}]}', timestamp=1_700_000_000)
    text = page(broker, row)
    said = plain(text)
    assert "Published to orders" in said
    assert "The time is from the AMQP timestamp, in whole seconds." in said
    assert "rejected in orders" in said
    assert "Parked in dead" in said
    assert '<svg class="graph' in text
    assert "1.10" in said
    assert "The message arrives in orders at once." in said
    assert AuditEntry.objects.filter(action="parked message read").count() == 1


def test_without_its_broker_the_message_is_there_and_the_rest_is_said_to_be_unknown(
    broker: Broker,
) -> None:
    said = plain(page(broker, one(broker)))
    assert "The prediction is not available until the broker answers." in said
    assert "rejected in orders" in said


@pytest.mark.parametrize(("role", "status"), [(None, 404), (Role.VIEWER, 403)])
def test_only_operators_read_messages(broker: Broker, role: Role | None, status: int) -> None:
    row = one(broker)
    for name in ("parked_message", "parked_message_body"):
        address = reverse(name, args=[broker.slug, row.pk])
        assert signed_in(role).get(address).status_code == status


def test_one_of_another_broker_is_not_found(broker: Broker) -> None:
    address = reverse("parked_message", args=[broker.slug, one(broker).pk + 1])
    assert signed_in(Role.OPERATOR).get(address).status_code == 404


def test_the_body_comes_down_byte_for_byte_and_is_audited(broker: Broker) -> None:
    body = bytes(range(256)) + b"<script>"
    row = one(broker, body)
    answer = signed_in(Role.OPERATOR).get(
        reverse("parked_message_body", args=[broker.slug, row.pk])
    )
    assert answer.content == body
    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Content-Disposition"].startswith("attachment")
    assert AuditEntry.objects.filter(action="body downloaded", outcome="done").count() == 1


def test_what_a_rule_hides_is_nowhere_on_the_page_and_not_handed_out(broker: Broker) -> None:
    RedactionRule.objects.create(kind=RedactionKind.BODY, pattern="card", least_role=Role.ADMIN)
    RedactionRule.objects.create(kind=RedactionKind.HEADER, pattern="token", least_role=Role.ADMIN)
    headers = deaths_header(a_death()) | {"token": "s3cret", "t": {"token": "s3cret"}}
    rows = [
        one(broker, body, headers=headers, content_type=kind)
        for body, kind in (
            (b'{"card": 4111, "name": "Ada"}', "application/json"),
            (gzip.compress(b'{"card": 4111, "name": "Ada"}'), ""),
            (b"card=4111", "text/plain"),
            (b"\xff4111", "application/x-protobuf"),
        )
    ]
    client = signed_in(Role.OPERATOR)
    for row in rows:
        text = page(broker, row, client)
        assert "4111" not in text
        assert "34 31 31 31" not in text
        assert "s3cret" not in text
        assert "redacted" in text
        refused = client.get(reverse("parked_message_body", args=[broker.slug, row.pk]))
        assert refused.status_code == 403
        assert "4111" in page(broker, row, signed_in(Role.ADMIN)) or row is not rows[0]
    assert "Ada" in page(broker, rows[1], client)
    assert AuditEntry.objects.filter(action="body downloaded", outcome="refused").count() == 4


def test_a_hidden_history_is_hidden_everywhere(broker: Broker) -> None:
    RedactionRule.objects.create(kind=RedactionKind.HEADER, pattern="x-*", least_role=Role.ADMIN)
    know(broker, *shop())
    text = page(broker, one(broker))
    assert "A redaction rule hides the history." in plain(text)
    assert "rejected" not in text
    assert "orders" not in text
    assert '<svg class="graph' not in text


def test_rounds_tell_the_first_and_that_the_last_is_not_known(broker: Broker) -> None:
    later = NOON + timedelta(seconds=9)
    headers = deaths_header(
        a_death(count=4), a_death("retry", "expired", count=3, first_at=later, exchange="again")
    )
    reported = {"x-last-death-queue": "orders", "x-last-death-reason": "rejected"}
    said = plain(page(broker, one(broker, headers=headers | reported)))
    assert "rejected in orders , 4 times" in said
    assert "Last rejected in orders" in said
    assert "7 deaths in total." in said


def test_repeats_equals_and_states_are_told(broker: Broker) -> None:
    first, second, third = parked(broker, a_message(), a_message(), a_message())
    third.repeat_of = first
    third.state, third.state_at = ParkedState.DISCARDED, datetime(2026, 11, 21, tzinfo=UTC)
    third.save()
    text = page(broker, third)
    assert "This message may be a repeat of" in plain(text)
    assert "Discarded" in plain(text)
    assert reverse("parked_message", args=[broker.slug, first.pk]) in text
    middle = page(broker, second)
    assert reverse("parked_message", args=[broker.slug, first.pk]) in middle
    assert "Older message" in middle
    assert "Newer message" not in middle


HOSTILE = "<script>alert(1)</script>\u202e\u0007"


def test_every_name_is_escaped(broker: Broker) -> None:
    death = a_death(HOSTILE, exchange=HOSTILE, routing_keys=(HOSTILE,), reason=HOSTILE)
    know(broker, *shop())
    row = one(
        broker,
        b'{"<script>alert(1)</script>": "<script>alert(1)</script>"}',
        headers=deaths_header(death) | {HOSTILE: HOSTILE},
        message_id=HOSTILE,
    )
    assert "<script>alert" not in page(broker, row)


def entries(**changes: Any) -> list[Any]:
    whole = {
        "count": 1,
        "reason": "rejected",
        "queue": "q",
        "time": datetime(2026, 11, 20, tzinfo=UTC),
        "exchange": "x",
        "routing-keys": ["k"],
    }
    return [{**whole, **changes}]


def deep(levels: int) -> Any:
    value: Any = "end"
    for _ in range(levels // 2):
        value = [{"a": value}]
    return value


MALFORMED: dict[str, Any] = {
    "missing keys": [{}],
    "no list": "text",
    "a number": 7,
    "a table": {"queue": "q"},
    "not tables": [1, "a", None, b"\xff"],
    "negative count": entries(count=-5),
    "huge count": entries(count=2**63 - 1),
    "bytes name": entries(queue=b"\xff\xfe", exchange=b"\x00"),
    "no name": entries(queue="", exchange="", **{"routing-keys": []}),
    "year 1": entries(time=datetime(1, 1, 1, tzinfo=UTC)),
    "year 9999": entries(time=datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    "beyond": entries(time=2**62),
    "wrong types": entries(count="2", reason=7, queue=[1], time="now", exchange={"a": 1}),
    "1,000 entries": [entries(queue=f"q{n}")[0] for n in range(1000)],
    "1,000 keys": entries(**{"routing-keys": [f"k{n}" for n in range(1000)]}),
    "100 deep": deep(98),
    "100 deep within": entries(queue=deep(90)),
    "a NUL": entries(queue="a\x00b", reason="\x00"),
    "lone surrogate bytes": entries(queue=b"\xed\xa0\x80"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_history_is_shown(broker: Broker, name: str) -> None:
    know(broker, *shop())
    row = one(broker, headers={"x-death": MALFORMED[name]}, timestamp=2**64 - 1)
    assert "History" in page(broker, row)


@pytest.fixture
def reader(broker: Broker) -> Client:
    know(broker, *shop())
    return signed_in(Role.OPERATOR)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30
)
@given(
    st.dictionaries(
        st.sampled_from(
            ["x-death", "x-first-death-queue", "x-last-death-queue", "timestamp_in_ms"]
        ),
        strategies.writable_values
        | st.lists(
            st.dictionaries(
                st.sampled_from(["count", "reason", "queue", "time", "exchange", "routing-keys"]),
                strategies.writable_values,
            )
        ),
    ),
    st.binary(max_size=60),
)
def test_no_message_breaks_its_page(
    broker: Broker, reader: Client, headers: dict[str, Any], body: bytes
) -> None:
    assert "History" in page(broker, one(broker, body, headers=headers), reader)


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\xff\xff\xff", b"\x20\x00\x00\x00\x00\x05ab"])
def test_unreadable_properties_are_said(broker: Broker, raw: bytes) -> None:
    (row,) = parked(broker, Message("", "dead", read_properties(raw), b"{}"))
    assert "Delayboard cannot read a property" in page(broker, row)
