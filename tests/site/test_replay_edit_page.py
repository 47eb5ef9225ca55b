"""Editing one message of a draft: what a form can carry, and what must not change by it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from delayboard.models import (
    BatchState,
    ParkedMessage,
    RedactionKind,
    RedactionRule,
    ReplayBatch,
    ReplayEdit,
)
from tests.delayboard.builders import SHOP, a_death, a_message, deaths_header, parked
from tests.delayboard.replay_rows import a_batch
from tests.site.page_setup import know, signed_in, text_of
from topology.broker.properties.read import read_properties
from topology.models import Broker, Role

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def seen(broker: Broker) -> None:
    know(broker, *SHOP)


def a_draft(broker: Broker, body: bytes = b'{"n": 1}', **headers: Any) -> ReplayBatch:
    message = a_message(body, deaths_header(a_death()) | headers)
    return a_batch(broker, parked(broker, message))


def address(batch: ReplayBatch, position: int = 1) -> str:
    return reverse("replay_item", args=[batch.pk, position])


def page(batch: ReplayBatch, role: Role = Role.OPERATOR) -> str:
    return text_of(signed_in(role, batch.broker).get(address(batch)))


def send(batch: ReplayBatch, **values: Any) -> str:
    client = signed_in(Role.OPERATOR, batch.broker)
    return text_of(client.post(address(batch), values, follow=True))


def rows(*typed: tuple[str, str, str]) -> dict[str, list[str]]:
    """The form's rows of name, type and value."""
    names = ("headers-name", "headers-type", "headers-text")
    return {
        name: list(column) for name, column in zip(names, zip(*typed, strict=True), strict=True)
    }


TENANT = ("tenant", "integer", "42")


def test_the_page_and_the_dry_run_show_what_leaves(broker: Broker) -> None:
    batch = a_draft(broker, task="shop.place", id="a1", retries=3)
    for role, is_shown in ((Role.OPERATOR, True), (Role.VIEWER, False)):
        client = signed_in(role, broker)
        draft = text_of(client.get(reverse("replay_batch", args=[batch.pk])))
        assert ("Changes made by the replay, message 1" in draft) is is_shown
        assert ("header retries" in draft) is is_shown
        assert "so a message starts with its first attempt" in draft
    assert "header retries" in page(batch)
    headers = rows(
        ("task", "text", "shop.place"), ("id", "text", "a1"), ("retries", "integer", "9")
    )
    send(batch, **headers, body='{"n": 2}', version="")
    text = page(batch)
    assert '<ins>+   "n": 2</ins>' in text.replace("&quot;", '"')
    assert '<span class="name">9</span>' in text


def edited_headers() -> dict[str, Any]:
    return dict(read_properties(bytes(ReplayEdit.objects.get().properties)).headers)


def test_headers_and_body_are_changed_and_the_parked_message_stays(broker: Broker) -> None:
    batch = a_draft(broker, tenant=42, note="old")
    before = ParkedMessage.objects.values().get()
    text = page(batch)
    assert '<input name="headers-text" value="42"' in text
    assert "RabbitMQ sets this header, and every replay removes it." in text
    values = rows(("tenant", "integer", "43"), ("note", "text", "old"), ("", "text", ""))
    assert "Message 1 is edited and checked again." in send(batch, body='{"n": 2}', **values)
    assert edited_headers()["tenant"] == 43
    assert bytes(ReplayEdit.objects.get().body.data) == b'{"n": 2}'
    assert ParkedMessage.objects.values().get() == before
    assert '<span class="tag">edited</span>' in text_of(
        signed_in(Role.VIEWER, broker).get(reverse("replay_batch", args=[batch.pk]))
    )


def test_what_is_sent_as_it_stands_changes_nothing(broker: Broker) -> None:
    batch = a_draft(broker, b"one\r\ntwo\r\n", note="a\nb")
    values = rows(("note", "text", "a\r\nb"))
    sent = send(batch, body="one\r\ntwo\r\n", **values)
    assert "Nothing was changed in message 1." in sent
    assert not ReplayEdit.objects.exists()


def test_the_ends_of_lines_stay_as_they_were(broker: Broker) -> None:
    windows, unix = a_draft(broker, b"one\r\ntwo"), a_draft(broker, b"one\ntwo")
    for batch, kept in ((windows, b"one\r\nthree"), (unix, b"one\nthree")):
        send(batch, body="one\r\nthree")
        assert bytes(ReplayEdit.objects.latest("pk").body.data) == kept


def test_a_header_is_left_out_and_another_added(broker: Broker) -> None:
    batch = a_draft(broker, tenant=42)
    send(batch, **rows(("", "integer", ""), ("n", "integer", "7")))
    headers = edited_headers()
    assert "tenant" not in headers
    assert headers["n"] == 7
    assert "has no edits" in send(batch, undo="1")
    assert not ReplayEdit.objects.exists()


def version(text: str) -> str:
    found = re.search(r'name="version" value="([^"]*)"', text)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("pressed", [{"body": "new"}, {"undo": "1"}])
def test_a_form_that_was_opened_before_another_edit_changes_nothing(
    broker: Broker, pressed: dict[str, str]
) -> None:
    batch = a_draft(broker, tenant=42)
    send(batch, body="first", **rows(TENANT))
    opened = version(page(batch))
    send(batch, version=opened, body="first", **rows(TENANT, ("added", "text", "x")))
    for _ in range(2):
        text = send(batch, version=opened, **pressed, **rows(TENANT))
        assert "This message was edited meanwhile. Open it again, then repeat your changes." in text
        assert version(text) == opened
    assert edited_headers()["added"] == "x"
    assert bytes(ReplayEdit.objects.get().body.data) == b"first"
    send(batch, version=version(page(batch)), **pressed, **rows(TENANT))
    assert not ReplayEdit.objects.filter(body__data=b"first").exists()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (rows(("tenant", "integer", "many")), "is no whole number"),
        (rows(TENANT, ("", "text", "x")), "Enter a header name."),
        (rows(TENANT, ("tenant", "text", "x")), "Another row has this name."),
        (rows(TENANT, ("n", "nothing", "x")), "It holds nothing"),
        (rows(TENANT, ("n", "?", "x")), "Its type is one of"),
        (rows(TENANT, ("x-death", "text", "x")), "RabbitMQ sets this header"),
    ],
)
def test_what_is_wrong_changes_nothing_and_stays_in_the_form(
    broker: Broker, values: dict[str, list[str]], said: str
) -> None:
    batch = a_draft(broker, tenant=42)
    text = send(batch, body="typed anew", **values)
    assert "The changes are not saved." in text
    assert said in text
    assert "typed anew" in text
    assert not ReplayEdit.objects.exists()


def test_bytes_are_replaced_by_a_file_alone(broker: Broker) -> None:
    batch = a_draft(broker, bytes(range(256)))
    text = page(batch)
    assert "The body is binary or too long to edit here" in text
    assert 'name="body"' not in text
    send(batch, body="forged")
    assert not ReplayEdit.objects.exists()
    send(batch, file=SimpleUploadedFile("body.bin", b"\x00\xff\x01"))
    assert bytes(ReplayEdit.objects.get().body.data) == b"\x00\xff\x01"


def test_what_a_form_cannot_carry_is_not_offered(broker: Broker) -> None:
    headers: dict[str, Any] = {"odd": "a\x01b", "<b>bold</b>": "<script>alert(1)</script>"}
    batch = a_draft(broker, **headers)
    text = page(batch)
    assert "The value contains characters that a form cannot show." in text
    assert "<script>alert" not in text
    assert "<b>bold" not in text


def test_what_is_hidden_is_neither_shown_nor_changed(broker: Broker) -> None:
    batch = a_draft(broker, b'{"card": 4111}', token="s3cret")
    RedactionRule.objects.create(kind=RedactionKind.HEADER, pattern="token", least_role=Role.ADMIN)
    RedactionRule.objects.create(kind=RedactionKind.BODY, pattern="card", least_role=Role.ADMIN)
    text = page(batch)
    assert "s3cret" not in text
    assert "4111" not in text
    assert "The replay sends the original body" in text
    text = send(batch, body="forged", **rows(("token", "text", "x")))
    assert "The changes are not saved." in text
    assert not ReplayEdit.objects.exists()


def test_only_operators_edit_and_only_drafts(broker: Broker) -> None:
    batch = a_draft(broker)
    assert signed_in(Role.VIEWER, broker).get(address(batch)).status_code == 403
    assert signed_in(Role.OPERATOR, broker).get(address(batch, 2)).status_code == 404
    ReplayBatch.objects.update(state=BatchState.RUNNING)
    assert "You can edit only drafts" in page(batch)
    assert "Only a draft can be edited" in send(batch, body="late")
    assert not ReplayEdit.objects.exists()


def test_edit_and_replay_leads_from_a_parked_message_to_its_form(broker: Broker) -> None:
    parked_message = parked(broker, a_message(b"1"))[0]
    client = signed_in(Role.OPERATOR, broker)
    asked = {"parked_message": parked_message.pk, "edit": "1"}
    answer = client.post(reverse("parked_messages_replay", args=[broker.slug]), asked, follow=True)
    assert "Edit message 1" in text_of(answer)
