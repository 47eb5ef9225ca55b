"""Tokens are made in the browser, and open the API with at most the rights of their owner."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
import time_machine
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from delayboard.api import door
from delayboard.models import ApiToken
from delayboard.sign_in.tokens import TokenError, make_token
from tests.builders import make_broker, make_user
from tests.site.api_client import api_of
from tests.site.page_setup import signed_in, text_of
from topology.models import AuditEntry, Role

pytestmark = pytest.mark.django_db
FORM = {"name": "deploy", "role": "1", "days": "30"}


def page_of(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_a_token_is_shown_once_and_stored_as_a_digest() -> None:
    ann = make_user("ann", Role.OPERATOR)
    page = page_of(ann)
    shown = text_of(page.post("/tokens/", FORM | {"addresses": "10.0.0.0/8\n::1"}))
    (secret,) = set(re.findall(r"dlb_[\w-]{43}", shown))
    row = ApiToken.objects.get()
    assert (row.name, row.role, row.broker_ids) == ("deploy", Role.VIEWER, None)
    assert row.addresses == "10.0.0.0/8,::1/128"
    assert secret not in str(vars(row))
    assert secret not in text_of(page.get("/tokens/"))
    entry = AuditEntry.objects.get(action="token created")
    assert (entry.what, entry.details["role"]) == ("deploy", "Viewer")
    assert secret not in str(entry.details)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": ""}, "Enter a name"),
        ({"name": "x" * 61}, "Enter a name"),
        ({"role": "3"}, "You do not have the role admin"),
        ({"role": "9"}, "Select a role."),
        ({"days": "0"}, "Enter 1 to 366 days"),
        ({"days": "x"}, "Enter 1 to 366 days"),
        ({"addresses": "somewhere"}, "Enter addresses or networks"),
        ({"broker": "999"}, "Select brokers on which you have this role"),
    ],
)
def test_a_wrong_token_is_refused_with_a_sentence(change: dict[str, str], sentence: str) -> None:
    answer = page_of(make_user("ann", Role.OPERATOR)).post("/tokens/", FORM | change)
    assert answer.status_code == 400
    assert sentence in answer.content.decode()
    assert not ApiToken.objects.exists()


def test_a_token_has_the_role_on_each_of_its_brokers() -> None:
    here, there = make_broker(name="Here"), make_broker(name="There")
    ann = make_user("ann", Role.OPERATOR, here)
    with pytest.raises(TokenError, match="brokers on which you have this role"):
        make_token(ann, name="x", role=Role.VIEWER, brokers=[there.pk], days=1)
    token, _ = make_token(ann, name="x", role=Role.OPERATOR, brokers=[here.pk], days=1)
    assert token.broker_ids == [here.pk]


def test_a_person_revokes_their_own_tokens_and_an_admin_all() -> None:
    ann, eve, root = (
        make_user("ann", Role.VIEWER),
        make_user("eve", Role.VIEWER),
        signed_in(Role.ADMIN),
    )
    api = api_of(ann, Role.VIEWER)
    row = ApiToken.objects.get()
    assert page_of(eve).post("/tokens/revoke/", {"token": row.pk}).status_code == 404
    assert api.get("brokers").status_code == 200
    assert row.name in text_of(root.get("/tokens/?all=1"))
    assert row.name not in text_of(page_of(eve).get("/tokens/?all=1"))
    root.post("/tokens/revoke/", {"token": row.pk, "all": "1"})
    refused = api.get("brokers")
    assert refused.status_code == 401
    assert "revoked" in refused.json()["detail"]
    assert AuditEntry.objects.filter(action="token revoked").count() == 1


def test_no_other_sign_in_opens_the_api() -> None:
    page = signed_in(Role.ADMIN)
    answer = page.get("/api/v1/brokers")
    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Bearer"
    assert answer["Content-Type"] == "application/problem+json"
    assert page.post("/api/v1/runs", {}, headers={"Authorization": "Basic x"}).status_code == 401
    assert page.get("/api/v1/nothing").status_code == 401


@pytest.mark.parametrize("why", ["expired", "inactive", "address"])
def test_a_token_ends(why: str) -> None:
    ann = make_user("ann", Role.VIEWER)
    api = api_of(ann, Role.VIEWER, addresses="192.0.2.0/24" if why == "address" else "")
    if why == "address":
        assert api.get("brokers", REMOTE_ADDR="192.0.2.7").status_code == 200
        assert api.get("brokers", REMOTE_ADDR="::ffff:192.0.2.7").status_code == 200
    elif why == "expired":
        with time_machine.travel(timezone.now() + timedelta(days=31)):
            assert api.get("brokers").status_code == 401
        return
    else:
        User.objects.update(is_active=False)
    assert api.get("brokers").status_code == 401


def test_a_token_loses_what_its_owner_loses() -> None:
    broker = make_broker()
    ann = make_user("ann", Role.ADMIN)
    api = api_of(ann, Role.OPERATOR)
    assert [one["slug"] for one in api.get("brokers").json()["items"]] == [broker.slug]
    assert api.get("audit").status_code == 403
    ann.grants.all().delete()
    assert api.get("brokers").json()["items"] == []


def test_the_last_use_is_shown() -> None:
    ann = make_user("ann", Role.VIEWER)
    api_of(ann, Role.VIEWER).get("brokers", REMOTE_ADDR="192.0.2.9")
    assert "192.0.2.9" in text_of(page_of(ann).get("/tokens/"))


def test_the_audit_log_has_the_name_of_the_token() -> None:
    broker = make_broker()
    api = api_of(make_user("ann", Role.OPERATOR), Role.OPERATOR)
    answer = api.post("runs", {"day": "2026-11-20"})
    assert (answer.status_code, answer["Location"]) == (202, "/api/v1/runs/2026-11-20")
    entry = AuditEntry.objects.get(action="nightly run requested")
    assert (entry.username, entry.details["token"]) == ("ann", "test")
    assert broker.pk


def test_a_token_sends_so_many_requests_in_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "REQUESTS_PER_MINUTE", 2)
    api = api_of(make_user("ann", Role.VIEWER), Role.VIEWER)
    with time_machine.travel(timezone.now().replace(second=30), tick=False):
        assert [api.get("brokers").status_code for _ in range(3)] == [200, 200, 429]
        assert 1 <= int(api.get("brokers")["Retry-After"]) <= 60


def test_the_requests_of_all_processes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process takes a part of the minute from the database."""
    monkeypatch.setattr(door, "REQUESTS_PER_MINUTE", 60)
    api = api_of(make_user("ann", Role.VIEWER), Role.VIEWER)
    with time_machine.travel(timezone.now().replace(second=30), tick=False):
        assert api.get("brokers").status_code == 200
        assert ApiToken.objects.get().requests == 2
        ApiToken.objects.update(requests=60)
        assert [api.get("brokers").status_code for _ in range(2)] == [200, 429]


def test_a_token_of_a_provider_ends_without_a_sign_in() -> None:
    ann = make_user("ann", Role.VIEWER)
    ann.set_unusable_password()
    ann.last_login = timezone.now() - timedelta(days=29)
    ann.save()
    api = api_of(ann, Role.VIEWER)
    assert api.get("brokers").status_code == 200
    User.objects.update(last_login=timezone.now() - timedelta(days=31))
    refused = api.get("brokers")
    assert (refused.status_code, "signed in" in refused.json()["detail"]) == (401, True)
