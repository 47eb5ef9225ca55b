from __future__ import annotations

import gzip
from typing import Any

import pytest
from django.urls import reverse

from delayboard.dead_letters.parked import redact_cause
from delayboard.models import RedactionKind, RedactionRule
from tests.delayboard.builders import a_message, parked
from tests.site.page_setup import signed_in, text_of
from topology.models import AuditEntry, Broker, Role

pytestmark = pytest.mark.django_db

RULE = {"kind": "header", "pattern": " x-*-token ", "least_role": str(Role.ADMIN.value)}


def address(name: str = "redaction") -> str:
    return reverse(name, args=["test-broker"])


def test_a_rule_is_added_told_deleted_and_audited(broker: Broker) -> None:
    admin = signed_in(Role.ADMIN, broker)
    assert "No redaction rules" in text_of(admin.get(address()))
    text = text_of(admin.post(address("redaction_rule_change"), RULE, follow=True))
    assert "“x-*-token” is now redacted." in text
    rule = RedactionRule.objects.get()
    assert (rule.broker, rule.pattern, rule.least_role) == (broker, "x-*-token", Role.ADMIN)
    text = text_of(admin.post(address("redaction_rule_change"), {"delete": rule.pk}, follow=True))
    assert "no longer redacted" in text
    assert RedactionRule.objects.count() == 0
    assert set(AuditEntry.objects.values_list("action", flat=True)) >= {
        "redaction rule added",
        "redaction rule deleted",
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "other"}, "Select a header or a body value"),
        ({"pattern": "  "}, "Enter the name of a header"),
        ({"pattern": "x" * 256}, "at most 255 characters"),
        ({"pattern": "a\x00b"}, "at most 255 characters"),
        ({"kind": "body", "pattern": "a["}, "is not a valid path from"),
        ({"kind": "body", "pattern": "items[0]"}, "or ..email for any depth."),
        ({"least_role": "9"}, "Select the roles"),
        ({"least_role": str(Role.VIEWER.value)}, "Select the roles"),
        ({"delete": "77"}, "This rule no longer exists."),
        ({"delete": "x"}, "This rule no longer exists."),
        ({"delete": "9" * 30}, "This rule no longer exists."),
        ({"delete": "²"}, "This rule no longer exists."),
    ],
)
def test_what_is_no_rule_changes_nothing(
    broker: Broker, changes: dict[str, str], said: str
) -> None:
    RedactionRule.objects.create(kind=RedactionKind.HEADER, pattern="kept")
    text = text_of(
        signed_in(Role.ADMIN).post(address("redaction_rule_change"), RULE | changes, follow=True)
    )
    assert "Nothing was changed." in text
    assert said in text
    assert RedactionRule.objects.count() == 1


def test_the_same_rule_twice_is_refused(broker: Broker) -> None:
    admin = signed_in(Role.ADMIN)
    for _ in range(2):
        text = text_of(admin.post(address("redaction_rule_change"), RULE, follow=True))
    assert "This rule already exists." in text
    assert RedactionRule.objects.count() == 1


@pytest.mark.parametrize(
    ("role", "status"), [(None, 404), (Role.VIEWER, 403), (Role.OPERATOR, 403)]
)
def test_only_admins_see_and_change_rules(broker: Broker, role: Role | None, status: int) -> None:
    client = signed_in(role)
    assert client.get(address()).status_code == status
    assert client.post(address("redaction_rule_change"), RULE).status_code == status
    assert RedactionRule.objects.count() == 0


def test_a_rule_for_every_broker_needs_an_admin_of_every_broker(broker: Broker) -> None:
    of_one = signed_in(Role.ADMIN, broker)
    everywhere = RULE | {"everywhere": "1"}
    assert of_one.post(address("redaction_rule_change"), everywhere).status_code == 403
    text_of(signed_in(Role.ADMIN).post(address("redaction_rule_change"), everywhere, follow=True))
    rule = RedactionRule.objects.get()
    assert rule.broker is None
    assert of_one.post(address("redaction_rule_change"), {"delete": rule.pk}).status_code == 403
    assert "Needs the role admin on every broker." in text_of(of_one.get(address()))
    assert RedactionRule.objects.count() == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"kind": "body", "pattern": "customer.*"}, "redacted"),
        ({"kind": "header", "pattern": "x-d*"}, "x-death"),
        (
            {"kind": "header", "pattern": "other"},
            "No match: the newest parked message does not match.",
        ),
        ({"kind": "header", "pattern": "reason"}, "x-death / reason"),
        ({"kind": "body", "pattern": "card"}, "The rule hides whole bodies that are not JSON."),
        ({"kind": "body", "pattern": "["}, "is not a valid path"),
        ({"kind": "odd", "pattern": "<script>"}, "&lt;script&gt;"),
    ],
)
def test_a_rule_is_tried_before_it_is_made(
    broker: Broker, asked: dict[str, Any], said: str
) -> None:
    parked(broker, a_message(b'{"customer": {"name": "Ada"}}'))
    text = text_of(signed_in(Role.ADMIN).get(address(), asked))
    assert said in text
    assert "<script>" not in text.replace('<script type="module"', "").replace("<script src", "")
    assert "Ada" not in text


def test_it_is_tried_on_a_message_that_has_it(broker: Broker) -> None:
    old, packed = parked(
        broker,
        a_message(b'{"card": 4111}', {"tenant": "x"}),
        a_message(gzip.compress(b'{"email": "a@b", "n": 1}'), content_encoding="gzip"),
    )
    parked(broker, *(a_message(b'{"other": %d}' % number) for number in range(5)))
    parked(broker, a_message(b"no JSON"), a_message(b'{"card": "%s"}' % (b"x" * 20_000)))
    admin = signed_in(Role.ADMIN)
    asked = ((old, "body", "card"), (old, "header", "tenant"), (packed, "body", "email"))
    for parked_message, kind, pattern in asked:
        text = text_of(admin.get(address(), {"kind": kind, "pattern": pattern}))
        assert reverse("parked_message", args=["test-broker", parked_message.pk]) in text
    assert "a@b" not in text
    text = text_of(admin.get(address(), {"kind": "header", "pattern": "nowhere"}))
    assert "none of the newest 8 parked messages matches" in text


def test_only_the_newest_are_tried(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redact_cause, "TRIED", 2)
    parked(broker, a_message(headers={"tenant": "x"}), a_message(), a_message())
    text = text_of(signed_in(Role.ADMIN).get(address(), {"kind": "header", "pattern": "tenant"}))
    assert "none of the newest 2 parked messages matches" in text


def test_without_a_message_nothing_can_be_tried(broker: Broker) -> None:
    text = text_of(signed_in(Role.ADMIN).get(address(), {"kind": "body", "pattern": "a"}))
    assert "no message is parked yet" in text
