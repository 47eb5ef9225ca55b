"""What operators declare of client libraries: typed, tried on a group, saved, exported, used."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from delayboard.models import MessageGroup, ParkedMessage, RedactionKind, RedactionRule
from tests.builders import make_broker
from tests.delayboard.builders import SHOP, a_message, parked
from tests.site.page_setup import know, signed_in, text_of
from topology.models import AuditEntry, Broker, ClientConvention, Role

pytestmark = pytest.mark.django_db

TYPED = {
    "name": "shop",
    "known_by": "x-src-queue",
    "queue": "x-src-queue",
    "exception_type": "x-why | trace_type",
    "attempt": "x-tries | failures",
    "message_id": "x-order",
    "zero": "x-tries",
}
HEADERS: dict[str, Any] = {
    "x-src-queue": "orders",
    "x-why": "shop.Late: no answer",
    "x-tries": 2,
    "x-order": "order-17",
}
TOML = """name = "shop"
known_by = [["/headers/x-src-queue"]]

[facts]
queue = ["/headers/x-src-queue"]
exception_type = ["/headers/x-why | trace_type"]
attempt = ["/headers/x-tries | failures"]
message_id = ["/headers/x-order"]

[restart]
zero = ["/headers/x-tries"]
"""


def address(name: str = "client_conventions", *more: object) -> str:
    return reverse(name, args=["test-broker", *more])


@pytest.fixture
def operator(broker: Broker) -> Client:
    know(broker, *SHOP)
    return signed_in(Role.OPERATOR)


def park_one(broker: Broker, **headers: Any) -> ParkedMessage:
    (row,) = parked(broker, a_message(headers=HEADERS | headers), queue="dead")
    return row


def save(client: Client, **values: object) -> str:
    return text_of(client.post(address("client_convention_save"), TYPED | values, follow=True))


def test_a_convention_is_tried_on_a_group_before_it_is_saved(
    broker: Broker, operator: Client
) -> None:
    row = park_one(broker)
    assert row.group.died_in == ""
    group = text_of(operator.get(address("message_group", row.group_id)))
    assert f"{address()}?group={row.group_id}" in group
    page = text_of(operator.get(address(), {"group": row.group_id}))
    assert "x-src-queue" in page
    tried = save(operator, group=row.group_id, **{"try": 1})
    for words in (
        "Recognized: 1 of 1 newest message of group",
        "shop.Late",
        "attempt 3",
        "order-17",
        "with routing key",
        "Good",
    ):
        assert words in tried
    assert not ClientConvention.objects.exists()
    saved = save(operator, group=row.group_id)
    assert "“shop” is saved." in saved
    assert f"Group {row.group_id}" in saved
    (made,) = ClientConvention.objects.all()
    assert made.text == TOML
    assert AuditEntry.objects.filter(action="client convention saved", what="shop").exists()


def test_a_saved_one_is_used_by_groups_replays_search_and_the_message(
    broker: Broker, operator: Client
) -> None:
    old = park_one(broker)
    save(operator)
    new = park_one(broker)
    assert (new.group.died_in, new.group.exception) == ("orders", "shop.Late")
    assert old.group_id != new.group_id
    page = text_of(operator.get(address("parked_message", old.pk)))
    assert "shop, attempt 3" in page
    assert "Would arrive" in page
    found = text_of(operator.get(address("parked_messages"), {"q": "id:order-17"}))
    assert address("parked_message", new.pk) in found
    sent = {"group": old.group_id}
    draft = text_of(operator.post(address("parked_messages_replay"), sent, follow=True))
    assert "All 1 messages would arrive." in draft
    assert "header x-tries" in draft


def test_another_broker_has_its_own(broker: Broker, operator: Client) -> None:
    save(operator)
    (row,) = parked(make_broker(name="Other"), a_message(headers=HEADERS), queue="dead")
    assert row.group.died_in == ""


def test_it_is_edited_exported_imported_and_deleted(broker: Broker, operator: Client) -> None:
    save(operator)
    (row,) = ClientConvention.objects.all()
    page = text_of(operator.get(address(), {"edit": row.pk}))
    assert 'value="x-why | trace_type"' in page
    file = operator.get(address("client_convention_export", row.pk))
    assert file.content.decode() == TOML
    assert "attachment" in file["Content-Disposition"]
    assert "“shop” is deleted." in text_of(
        operator.post(address("client_convention_delete"), {"name": "shop"}, follow=True)
    )
    assert "no longer exists" in text_of(
        operator.post(address("client_convention_delete"), {"name": "shop"}, follow=True)
    )
    upload = {"file": SimpleUploadedFile("shop.toml", file.content)}
    text = text_of(operator.post(address("client_convention_import"), upload, follow=True))
    assert "“shop” is saved." in text
    assert ClientConvention.objects.filter(retired_at=None).get().text == TOML
    save(operator, queue="x-other")
    assert ClientConvention.objects.filter(retired_at=None).count() == 1
    assert ClientConvention.objects.count() == 3


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"name": ""}, "This field is required."),
        ({"known_by": " , "}, "Enter a header by which to recognize the messages."),
        ({"known_by": "/steps/x"}, "is not a pointer"),
        ({"attempt": "x-tries | trace"}, "Forms of attempt are: number, failures."),
        ({"queue": "x | base17"}, "“base17” is not a form."),
        ({"name": "a\x00b"}, "Null characters are not allowed."),
        ({"name": "n" * 61}, "at most 60 characters"),
        ({"queue": ",".join(f"x{number}" for number in range(101))}, "at most 100 pointers"),
        (dict.fromkeys(list(TYPED)[2:], ""), "Enter at least one fact"),
    ],
)
def test_what_is_no_convention_is_refused_in_one_sentence(
    broker: Broker, operator: Client, values: dict[str, str], said: str
) -> None:
    assert said in save(operator, **values)
    assert not ClientConvention.objects.exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"name = ", "This is not TOML"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b'name = "x"', "Enter a header by which"),
        (TOML.encode() + b"#" * 10_000, "at most 10,000 characters"),
        (b"", "Choose a file that is not empty."),
    ],
)
def test_a_file_that_is_no_convention_is_refused(
    broker: Broker, operator: Client, content: bytes, said: str
) -> None:
    upload = {"file": SimpleUploadedFile("shop.toml", content)}
    text = text_of(operator.post(address("client_convention_import"), upload, follow=True))
    assert said in text
    assert not ClientConvention.objects.exists()


@pytest.mark.parametrize(("role", "status"), [(None, 404), (Role.VIEWER, 403)])
def test_only_operators_see_and_change_conventions(
    broker: Broker, role: Role | None, status: int
) -> None:
    client = signed_in(role)
    assert client.get(address()).status_code == status
    for view in ("save", "delete", "import"):
        assert client.post(address(f"client_convention_{view}"), TYPED).status_code == status
    assert client.get(address("client_convention_export", 1)).status_code == status


def test_a_redaction_rule_hides_what_a_convention_read(broker: Broker, operator: Client) -> None:
    save(operator)
    row = park_one(broker)
    RedactionRule.objects.create(
        kind=RedactionKind.HEADER, pattern="x-why", least_role=Role.ADMIN, broker=broker
    )
    page = text_of(operator.get(address("message_group", row.group_id)))
    assert "shop.Late" not in page
    tried = save(operator, group=row.group_id, **{"try": 1})
    assert "no answer" not in tried
    assert "shop.Late" not in tried
    # Groups keep what a deleted one read.
    operator.post(address("client_convention_delete"), {"name": "shop"})
    assert "shop.Late" not in text_of(operator.get(address("message_group", row.group_id)))
    assert MessageGroup.objects.get(pk=row.group_id).exception == "shop.Late"


def test_a_hidden_origin_hides_the_target(broker: Broker, operator: Client) -> None:
    row = park_one(broker)
    RedactionRule.objects.create(
        kind=RedactionKind.HEADER, pattern="x-src-queue", least_role=Role.ADMIN, broker=broker
    )
    tried = save(operator, group=row.group_id, **{"try": 1})
    assert "A redaction rule hides the target." in tried


def test_one_of_a_later_version_is_named_and_can_be_deleted(
    broker: Broker, operator: Client
) -> None:
    ClientConvention.objects.create(broker=broker, name="later", text="colour = 7")
    assert "Not readable" in text_of(operator.get(address()))
    assert park_one(broker).group.died_in == ""


def test_a_broker_has_so_many_at_most(broker: Broker, operator: Client) -> None:
    for number in range(20):
        assert "is saved" in save(operator, name=f"shop {number}")
    assert "A broker has at most 20 conventions." in save(operator, name="one more")
    assert "is saved" in save(operator, name="shop 7", queue="x-q")
