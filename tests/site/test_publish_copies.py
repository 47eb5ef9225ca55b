"""The publish form filled with a message that was seen, or with a template."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from analytics.models import ScheduledBody, ScheduledMessage
from delayboard.forms.publish import PublishForm
from delayboard.models import PublishTemplate, RedactionKind, RedactionRule
from tests.builders import make_broker
from tests.delayboard.builders import a_death, a_message, deaths_header, parked
from tests.site.page_setup import know, signed_in, text_of
from topology.broker.properties.read import build_properties
from topology.models import AuditEntry, Broker, Role, State, Topology

pytestmark = pytest.mark.django_db

HEADERS: dict[str, Any] = {
    "tenant": 42,
    "price": Decimal("1.50"),
    "raw": b"\x00\xff",
    "at": datetime(2026, 11, 24, 3, 0, tzinfo=UTC),
    "flag": True,
    "none": None,
    "nested": {"a": [1, "two"]},
    "trace": "Error\n  at main",
}
PUBLISH = reverse("publish")


def posted(form: PublishForm) -> dict[str, Any]:
    """What a browser sends of a form that nobody changed."""
    values = {field.name: field.value() for field in form if field.name != "headers"}
    for part in ("name", "type", "text"):
        # A browser sends a line's end as CRLF.
        texts = [getattr(row, part).replace("\n", "\r\n") for row in form.header_rows]
        values[f"headers-{part}"] = texts
    return {name: value for name, value in values.items() if value not in (None, False)}


@pytest.mark.parametrize("body", [b'{"a": 1}', b"a\r\nb", b"\x00\xff"])
def test_a_parked_message_is_copied_with_its_types_to_where_it_was_published(
    broker: Broker, body: bytes
) -> None:
    know(broker)
    death = a_death(exchange="shop", routing_keys=("paid",))
    headers = deaths_header(death) | HEADERS
    message = a_message(body, headers, type="shop.Paid", priority=3, delivery_mode=2)
    (row,) = parked(broker, message)
    client = signed_in(Role.OPERATOR)
    form = client.get(PUBLISH, {"clone": f"parked-{row.pk}"}).context["form"]
    again = client.post(PUBLISH, posted(form) | {"predict": "1"})
    outgoing = again.context["outgoing"]
    assert (outgoing.route.exchange, outgoing.route.routing_key, outgoing.body) == (
        "shop",
        "paid",
        body,
    )
    assert outgoing.headers == HEADERS
    assert (outgoing.properties["type"], outgoing.properties["priority"]) == ("shop.Paid", 3)
    assert AuditEntry.objects.get(action="message copied").what == f"{row.pk} of dead"
    address = {"clone": f"parked-{row.pk}"}
    assert signed_in(Role.VIEWER).get(PUBLISH, address).status_code == 403
    assert signed_in().get(PUBLISH, address).status_code == 404


def test_what_a_rule_hides_or_a_form_changes_is_not_copied(broker: Broker) -> None:
    know(broker)
    for kind, pattern in ((RedactionKind.HEADER, "ten*"), (RedactionKind.BODY, "card")):
        RedactionRule.objects.create(broker=broker, kind=kind, pattern=pattern)
    headers = {"tenant": 42, "other": 1, "windows": "a\r\nb"}
    (row,) = parked(broker, a_message(b'{"card": 7}', headers))
    answer = signed_in(Role.OPERATOR).get(PUBLISH, {"clone": f"parked-{row.pk}"})
    text = text_of(answer)
    assert "not copied: tenant, windows." in text
    assert "so the body is not copied" in text
    assert [one.name for one in answer.context["form"].header_rows] == ["other", ""]
    assert "card" not in text


@pytest.mark.parametrize(
    ("pattern", "copied", "hidden"),
    [
        ("x-death", ("", ""), "not copied: exchange, routing key."),
        ("exchange", ("", "paid"), "not copied: exchange."),
        ("CC", ("shop", ""), "not copied: routing key."),
        ("tenant", ("shop", "paid"), ""),
    ],
)
def test_a_hidden_target_is_not_copied(
    broker: Broker, pattern: str, copied: tuple[str, str], hidden: str
) -> None:
    know(broker)
    RedactionRule.objects.create(broker=broker, kind=RedactionKind.HEADER, pattern=pattern)
    headers = deaths_header(a_death(exchange="shop", routing_keys=("paid",)))
    message = replace(a_message(b"", headers), exchange="retry", routing_key="paid")
    (row,) = parked(broker, message)
    answer = signed_in(Role.OPERATOR).get(PUBLISH, {"clone": f"parked-{row.pk}"})
    initial = answer.context["form"].initial
    assert (initial["exchange"], initial["routing_key"]) == copied
    assert hidden in text_of(answer)


def test_a_scheduled_message_is_copied_into_its_topology(pair: Topology) -> None:
    Topology.objects.update(state=State.APPLIED)
    know(pair.broker, *pair.definitions)
    row = ScheduledMessage.objects.create(
        broker=pair.broker,
        topology=pair,
        key="k",
        content_id="c",
        attempt=1,
        requested_delay=timedelta(seconds=15),
        due_at=timezone.now(),
        destination="orders",
    )
    client = signed_in(Role.OPERATOR)
    address = {"clone": f"scheduled-{row.pk}"}
    assert "did not store this message" in text_of(client.get(PUBLISH, address))
    raw = build_properties({"n": 1}).raw
    ScheduledBody.objects.create(message=row, body=b"kept", properties=raw)
    answer = client.get(PUBLISH, address)
    assert "did not store" not in text_of(answer)
    outgoing = client.post(PUBLISH, posted(answer.context["form"]) | {"predict": "1"}).context
    assert "arrives in orders after 15s" in outgoing["prediction"].sentence
    assert (outgoing["outgoing"].body, outgoing["outgoing"].headers) == (b"kept", {"n": 1})
    assert client.get(PUBLISH, {"clone": "scheduled-x"}).status_code == 404
    assert client.get(PUBLISH, {"clone": "other-1"}).status_code == 404


def test_a_template_is_shared_by_the_operators_of_its_broker(broker: Broker) -> None:
    typed = {"broker": broker.slug, "routing_key": "work", "body": "x", "body_format": "json"}
    rows = {"headers-name": ["a", ""], "headers-type": ["decimal", "text"]}
    values = {**typed, **rows, "headers-text": ["1.5", ""], "save_template": "1"}
    client = signed_in(Role.OPERATOR)
    answer = client.post(PUBLISH, values | {"template_name": "Paid"}, follow=True)
    assert "The template “Paid” is saved." in text_of(answer)
    again = client.post(PUBLISH, values | {"template_name": "Paid"})
    assert "A template “Paid” already exists." in text_of(again)
    assert "Enter a name" in text_of(client.post(PUBLISH, values))
    null = client.post(PUBLISH, values | {"template_name": "Null", "body": "a\0"})
    assert "The template contains a NUL character." in text_of(null)
    nowhere = client.post(PUBLISH, {"save_template": "1", "template_name": "Other"})
    assert "Choose a topology or a broker first." in text_of(nowhere)
    row = PublishTemplate.objects.get()
    other = signed_in(Role.OPERATOR, broker)
    form = other.get(PUBLISH, {"template": row.pk}).context["form"]
    filled = posted(form)
    assert {name: filled[name] for name in typed} == typed
    assert next(iter(form.header_rows))[:3] == ("a", "decimal", "1.5")
    stranger = signed_in(Role.OPERATOR, make_broker(name="Other broker"))
    delete = reverse("publish_template_delete", args=[row.pk])
    assert stranger.get(PUBLISH, {"template": row.pk}).status_code == 404
    assert stranger.post(delete).status_code == 404
    assert "The template “Paid” is deleted." in text_of(other.post(delete, follow=True))
    actions = AuditEntry.objects.filter(action__startswith="template").order_by("pk")
    assert [entry.action for entry in actions] == ["template saved", "template deleted"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (("", "text", "x"), "Header: Enter the name of this header."),
        (("n", "integer", "x"), "n: “x” is no whole number."),
        (("n", "other", "x"), "n: Choose a type."),
        (("n", "time", "9999-12-31T23:59:59-23:59"), "n: Type a time in UTC"),
        (("x-death", "text", "x"), "x-death: RabbitMQ or Delayboard sets this header."),
        (("n", "integer", str(2**70)), "does not fit into 64 bits"),
        (("a", "text", "x"), "a: Another row has this name."),
    ],
)
def test_a_wrong_header_is_said(broker: Broker, row: tuple[str, str, str], problem: str) -> None:
    know(broker)
    names = ("headers-name", "headers-type", "headers-text")
    rows = {name: list(pair) for name, *pair in zip(names, ("a", "text", "1"), row, strict=True)}
    values = {"broker": broker.slug, "routing_key": "x", "predict": "1", **rows}
    assert problem in text_of(signed_in(Role.OPERATOR).post(PUBLISH, values))
