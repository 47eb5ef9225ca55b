"""What a rule hides of headers, wherever a message or its group would tell it again."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from delayboard.models import MessageGroup, ParkedMessage, RedactionRule, SavedView
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from tests.site.page_setup import know, signed_in, text_of
from topology.definitions import Queue
from topology.models import Broker, Role
from topology.redaction import HIDDEN

pytestmark = pytest.mark.django_db

HEADERS = {
    "x-exception-type": "shop.SecretException",
    "task": "shop.SecretTask",
    "id": "t7",
    **deaths_header(
        a_death(
            "secret-queue",
            "secret-reason",
            exchange="secret-exchange",
            routing_keys=("secret-key",),
        )
    ),
}
CAUSES = ("shop.SecretException",)
TYPES = ("shop.SecretTask",)
PLACES = ("secret-queue", "secret-exchange", "secret-key", "secret-reason")
RULES = [
    ("*exception*", CAUSES, (*TYPES, *PLACES)),
    ("task", TYPES, (*CAUSES, *PLACES)),
    ("x-death", PLACES, (*CAUSES, *TYPES)),
    ("routing-keys", PLACES[2:3], (*CAUSES, *TYPES, *PLACES[:2], PLACES[3])),
    ("*", (*CAUSES, *TYPES, *PLACES), ()),
]


@pytest.fixture
def parked_message(broker: Broker) -> ParkedMessage:
    know(broker, Queue("dead"))
    return parked(broker, a_message(b"{}", HEADERS))[0]


def hide(pattern: str) -> None:
    RedactionRule.objects.create(kind="header", pattern=pattern)


def of(client: Client, name: str, *args: Any, **query: str) -> str:
    return text_of(client.get(reverse(name, args=["test-broker", *args]), query))


def pages(parked_message: ParkedMessage, role: Role) -> dict[str, str]:
    client = signed_in(role)
    reported = {
        "rows": of(client, "parked_messages"),
        "groups": text_of(client.get(reverse("dead_letters"))),
        "group": of(client, "message_group", parked_message.group_id),
    }
    return reported | (
        {"parked_message": of(client, "parked_message", parked_message.pk)}
        if role > Role.VIEWER
        else {}
    )


@pytest.mark.parametrize(("pattern", "hidden", "shown"), RULES)
@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_no_page_tells_what_is_hidden(
    parked_message: ParkedMessage,
    role: Role,
    pattern: str,
    hidden: tuple[str, ...],
    shown: tuple[str, ...],
) -> None:
    for text in pages(parked_message, role).values():
        assert all(secret in text for secret in (*CAUSES, *PLACES[:1]))
    hide(pattern)
    reported = pages(parked_message, role)
    assert HIDDEN in reported["group"]
    for name, text in reported.items():
        for secret in hidden:
            assert secret not in text, (name, secret)
    assert all(value in reported["group"] for value in shown)


def test_who_may_see_all_sees_all(parked_message: ParkedMessage) -> None:
    hide("*")
    for text in pages(parked_message, Role.ADMIN).values():
        assert "shop.SecretException" in text
        assert HIDDEN not in text


@pytest.mark.parametrize(("pattern", "hidden", "shown"), RULES)
def test_no_export_tells_what_is_hidden(
    parked_message: ParkedMessage, pattern: str, hidden: tuple[str, ...], shown: tuple[str, ...]
) -> None:
    hide(pattern)
    client = signed_in(Role.OPERATOR)
    for form in ("csv", "jsonl"):
        answer = client.get(reverse("parked_messages_export", args=["test-broker"]), {"as": form})
        text = b"".join(answer.streaming_content).decode()  # type: ignore[attr-defined]
        assert all(secret not in text for secret in hidden), form
        assert all(reported in text for reported in shown), form
        if form == "jsonl":
            reported = json.loads(text)
            assert reported["masked"] is True
            assert reported["group"]["fingerprint"] == HIDDEN
        else:
            (row,) = csv.DictReader(io.StringIO(text))
            assert HIDDEN in row.values()


@pytest.mark.parametrize(
    ("pattern", "query"),
    [
        ("*exception*", "exception:s*"),
        ("*exception*", "-exception:s*"),
        ("ce-type", "type:shop.SecretTask"),
        ("x-death", "died:secret-*"),
        ("x-death", "reason:rejected"),
        ("x-first-death-exchange", "exchange:x"),
        ("NServiceBus.FailedQ", "key:x"),
        ("x-death", "deaths:>0"),
        ("x-death", "died-at:<2h"),
    ],
)
@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_what_is_hidden_cannot_be_searched(
    parked_message: ParkedMessage, role: Role, pattern: str, query: str
) -> None:
    client = signed_in(role)
    assert "so you cannot search it" not in of(client, "parked_messages", q=query)
    hide(pattern)
    field = query.removeprefix("-").partition(":")[0]
    text = of(client, "parked_messages", q=query)
    assert f"“{field}”, so you cannot search it." in text
    assert "so you cannot search it" not in of(signed_in(Role.ADMIN), "parked_messages", q=query)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_words_find_no_group_by_what_is_hidden(parked_message: ParkedMessage, role: Role) -> None:
    MessageGroup.objects.update(note="known note")
    hide("*exception*")
    client = signed_in(role)
    for word, is_found in (("SecretException", False), ("known", True), ("secret-queue", True)):
        text = text_of(client.get(reverse("dead_letters"), {"q": word}))
        assert ("known note" in text) == is_found, word


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_shared_views_do_not_tell_it(
    parked_message: ParkedMessage, broker: Broker, role: Role
) -> None:
    for name, query in (
        ("one", "exception:shop.SecretException"),
        ("two", "SecretWord"),
        ("three", "queue:dead"),
    ):
        SavedView.objects.create(broker=broker, name=name, query=query)
    client = signed_in(role)
    assert "SecretWord" in of(client, "parked_messages")
    hide("*exception*")
    text = of(client, "parked_messages")
    assert "Secret" not in text
    assert "queue:dead" in text
