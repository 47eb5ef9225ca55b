"""Messages with text that UTF-8 or PostgreSQL cannot hold: every page and file shows an escape."""

from __future__ import annotations

import io
import json
from base64 import b64encode
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics.events import bounded_headers, decode, encode
from analytics.models import ScheduledMessage
from analytics.scheduled import projection
from delayboard.dead_letters.import_messages import import_messages
from delayboard.dead_letters.presentation import show_whole
from delayboard.models import ParkedMessage, RedactionKind, RedactionRule
from tests.analytics.builders import an_entry
from tests.builders import make_broker
from tests.delayboard.builders import a_message, parked, shop
from tests.site.page_setup import know, parked_messages, signed_in
from tests.topology.test_text import any_text
from topology.models import Broker, Role

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]

# As JavaScript writes an emoji that was cut, as a name too, and a NUL.
CUT = b'{"k":"\\ud83d","\\udc00":{"nul":"\\u0000"},"list":["\\ud83d\\u0041"]}'


@pytest.fixture
def row(broker: Broker) -> ParkedMessage:
    know(broker, *shop())
    stated = {"message_id": "m\x00", "content_type": "application/json", "app_id": "a\x00"}
    return parked(broker, a_message(CUT, {"k\x00": "\x00", "n": {"\x00": ["\x00"]}}, **stated))[0]


def shown(client: Client, address: str, **query: str) -> str:
    answer = client.get(address, query)
    assert answer.status_code == 200, address
    content = b"".join(answer) if answer.streaming else answer.content
    return bytes(content).decode()


def test_its_own_page_shows_the_escape(broker: Broker, row: ParkedMessage) -> None:
    text = shown(signed_in(Role.OPERATOR), reverse("parked_message", args=[broker.slug, row.pk]))
    assert '<span class="tree-text">\\ud83d</span>' in text
    assert '<span class="tree-name">\\udc00</span>' in text
    assert '<span class="tree-text">\\x00</span>' in text
    assert bytes(row.body.data) == CUT


def test_pages_around_it_answer(broker: Broker, row: ParkedMessage) -> None:
    client = signed_in(Role.ADMIN)
    pages = {
        reverse("parked_messages", args=[broker.slug]): {"q": "k"},
        reverse("message_group", args=[broker.slug, row.group_id]): {},
        reverse("dead_letters"): {"q": "ud83d"},
        reverse("redaction", args=[broker.slug]): {"kind": "body", "pattern": "k"},
    }
    for address, query in pages.items():
        assert "<h1" in shown(client, address, **query)


def test_a_body_of_which_a_rule_hides_a_part_is_shown(broker: Broker, row: ParkedMessage) -> None:
    RedactionRule.objects.create(kind=RedactionKind.BODY, pattern="list", least_role=Role.ADMIN)
    text = shown(signed_in(Role.OPERATOR), reverse("parked_message", args=[broker.slug, row.pk]))
    assert '<span class="tree-text">\\ud83d</span>' in text


def test_an_export_is_read_back_bit_for_bit(broker: Broker, row: ParkedMessage) -> None:
    client = signed_in(Role.ADMIN)
    address = reverse("parked_messages_export", args=[broker.slug])
    lines = shown(client, address, **{"as": "jsonl"})
    assert "ud83d" in shown(client, address, **{"as": "csv"})
    other = make_broker(name="Other broker")
    import_messages(None, other, "parked_messages.jsonl", io.BytesIO(lines.encode()))
    back = ParkedMessage.objects.get(broker=other)
    assert bytes(back.body.data) == CUT
    assert bytes(back.properties) == bytes(row.properties)


@pytest.mark.parametrize(
    "headers", [{"k": "\x00"}, {"k\x00": b"\xed\xa0\xbd\x00"}, {"n": {"\x00": ["\x00", "\ud83d"]}}]
)
def test_a_scheduled_message_is_listed_shown_and_exported(
    pair: Any, headers: dict[str, Any]
) -> None:
    event = an_entry(
        "m\x00",
        timezone.now() + timedelta(hours=1),
        headers_json=bounded_headers(headers),
        body_base64=b64encode(CUT).decode(),
    )
    projection.project(pair, [decode(encode(event))])
    client, key = signed_in(Role.OPERATOR), ScheduledMessage.objects.get().pk
    page = reverse("analytics:scheduled_message", args=[key])
    assert "\\x00" in shown(client, page)
    assert "ud83d" in shown(client, page, body="1")
    for query in ({}, {"as": "jsonl"}, {"as": "csv"}, {"text": "ud83d"}):
        assert shown(client, reverse("analytics:scheduled"), **query)


def test_headers_of_a_row_that_others_wrote_are_escaped(pair: Any) -> None:
    event = an_entry("m1", timezone.now() + timedelta(hours=1), headers_json='{"a":["\\ud83d"]}')
    projection.project(pair, [event])
    client, key = signed_in(Role.OPERATOR), ScheduledMessage.objects.get().pk
    assert "\\ud83d" in shown(client, reverse("analytics:scheduled_message", args=[key]))
    assert "\\ud83d" in shown(client, reverse("analytics:scheduled"), **{"as": "jsonl"})


json_documents = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), any_text),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(any_text, inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(json_documents, st.booleans())
def test_any_json_text_is_shown_in_text_that_can_be_sent(document: Any, is_ascii: bool) -> None:
    body = json.dumps(document, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    (parked_message,) = parked_messages(body)
    found = show_whole(parked_message)
    texts = [found.body.text, found.hex]
    texts += [text for line in found.lines for text in (line.name, line.text)]
    for text in texts:
        assert text.encode().decode() == text
        assert "\x00" not in text
