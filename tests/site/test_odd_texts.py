"""Texts that no database can hold, typed or sent: answered with a sentence or kept escaped."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from delayboard.models import MessageGroup, RedactionRule, SavedView
from tests.delayboard.builders import a_message, parked
from tests.site.page_setup import know, signed_in
from tests.topology.builders import a_queue
from topology.models import Broker, Role

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]

VIEWS = "/preferences/views/?broker=test-broker"
# The last is half of a surrogate pair, as UTF-8 would write it.
ODD = [b"a\x00b", b"\xff\xfe", b"\xed\xa0\x80"]


def sent(client: Client, name: str, values: dict[str, bytes | str], *args: Any) -> Any:
    """Percent-encoded as no browser would write it."""
    pairs = [
        (key, value if isinstance(value, bytes) else value.encode())
        for key, value in values.items()
    ]
    body = "&".join(f"{key}=" + "".join(f"%{byte:02X}" for byte in value) for key, value in pairs)
    address = VIEWS if name == "saved_views" else reverse(name, args=["test-broker", *args])
    form = "application/x-www-form-urlencoded"
    return client.post(address, body, content_type=form, follow=True)


@pytest.fixture
def admin(broker: Broker) -> Client:
    know(broker, a_queue("dead"))
    parked(broker, a_message(b"{}"))
    return signed_in(Role.ADMIN)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("saved_views", ("name", "q")),
        ("saved_views", ("q",)),
        ("saved_views", ("delete",)),
        ("dead_letter_queue_decide", ("name",)),
        ("dead_letter_queue_decide", ("name", "next")),
        ("redaction_rule_change", ("pattern",)),
        ("redaction_rule_change", ("delete",)),
        ("redaction_rule_change", ("kind", "least_role")),
        ("client_convention_save", ("name", "queue")),
        ("client_convention_save", ("known_by", "group")),
        ("client_convention_delete", ("name",)),
        ("parked_messages_discard", ("q", "all")),
        ("parked_messages_restore", ("q", "next")),
        ("watch", ("name", "on")),
        ("park", ("name", "message")),
        ("replay_prepare", ("message", "exchange")),
        ("move_queue_start", ("name", "target")),
        ("parked_messages_replay", ("q", "all")),
        ("parked_messages_replay", ("parked_message", "group", "newest", "next")),
    ],
)
def test_nothing_that_is_sent_breaks_a_page(
    admin: Client, odd: bytes, name: str, fields: tuple[str, ...]
) -> None:
    values: dict[str, dict[str, bytes | str]] = {
        "saved_views": {"list": "parked_messages", "name": "search", "q": "reason:x"},
        "dead_letter_queue_decide": {"name": "dead", "confirmed": "1"},
        "redaction_rule_change": {"kind": "header", "pattern": "x", "least_role": "3"},
        "client_convention_save": {"name": "shop", "known_by": "x-q", "queue": "x-q", "try": "1"},
        "parked_messages_discard": {"q": "", "all": "1"},
        "parked_messages_replay": {"q": "", "all": "1"},
        "replay_prepare": {"name": "dead", "target": "typed", "exchange": "", "routing_key": "x"},
    }
    known = values.get(name, {"name": "dead"})
    answer = sent(admin, name, known | dict.fromkeys(fields, odd))
    assert answer.status_code in (200, 400, 404)
    for row in (
        *SavedView.objects.values_list("name", "query"),
        *RedactionRule.objects.values_list("pattern"),
    ):
        assert all("\x00" not in text for text in row)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("field", ["note", "owner", "link"])
def test_nothing_that_people_write_on_a_group_breaks_it(
    admin: Client, odd: bytes, field: str
) -> None:
    group = MessageGroup.objects.get()
    answer = sent(admin, "message_group_edit", {"note": "n", field: odd}, group.pk)
    assert answer.status_code == 200
    group.refresh_from_db()
    assert "\x00" not in group.note + group.link


@pytest.mark.parametrize("query", ["%ED%A0%80", "%FF", "%EF%BF%BF", "%E2%80%AE"])
@pytest.mark.parametrize(
    "address",
    [
        "/dead-letters/?broker=test-broker&q=",
        "/dead-letters/test-broker/parked/?q=",
        "/dead-letters/test-broker/parked/?q=id:",
        "/dead-letters/test-broker/redaction/?kind=body&pattern=",
        "/dead-letters/test-broker/redaction/?kind=header&pattern=",
    ],
)
def test_nothing_in_an_address_breaks_a_page(admin: Client, address: str, query: str) -> None:
    assert admin.get(address + query).status_code == 200


def test_a_pattern_that_is_much_too_long_is_refused_shortly(admin: Client) -> None:
    text = admin.get(
        reverse("redaction", args=["test-broker"]), {"kind": "body", "pattern": "[" * 100_000}
    ).content.decode()
    assert "A pattern has at most 255 characters" in text
    assert len(text) < 50_000
