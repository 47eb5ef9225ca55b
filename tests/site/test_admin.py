"""Whatever is done to accounts in the admin is in the audit log, once, without a password."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from tests.builders import make_user
from topology.models import AuditEntry, Broker, Grant, Role

pytestmark = pytest.mark.django_db

PASSWORD = "another long enough password"
NO_GRANTS = {
    "grants-TOTAL_FORMS": "0",
    "grants-INITIAL_FORMS": "0",
}


@pytest.fixture
def root() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    AuditEntry.objects.all().delete()
    return client


def sent(client: Client, address: str, values: dict[str, Any]) -> list[tuple[str, str]]:
    """Post to the admin: what was recorded, as (action, what); fails when a secret is in it."""
    answer = client.post(address, values)
    assert answer.status_code == 302, answer.content.decode()
    entries = list(AuditEntry.objects.order_by("pk"))
    for entry in entries:
        assert entry.username == "root"
        assert PASSWORD not in f"{entry.what} {entry.outcome} {entry.details}"
    return [(entry.action, entry.what) for entry in entries]


def test_an_account_that_is_added_is_recorded(root: Client) -> None:
    values = {"username": "ann", "usable_password": "true"} | NO_GRANTS
    values |= {"password1": PASSWORD, "password2": PASSWORD}
    assert sent(root, reverse("admin:auth_user_add"), values) == [("account added", "ann")]


def test_a_change_is_recorded_once_with_the_fields_and_the_grants(
    root: Client, broker: Broker
) -> None:
    ann = make_user("ann")
    values = {
        "username": "ann",
        "last_name": "Lee",
        "is_active": "on",
        "date_joined_0": "2026-01-01",
        "date_joined_1": "00:00:00",
        "grants-TOTAL_FORMS": "1",
        "grants-INITIAL_FORMS": "0",
        "grants-0-user": ann.pk,
        "grants-0-broker": broker.pk,
        "grants-0-role": Role.OPERATOR.value,
    }
    done = sent(root, reverse("admin:auth_user_change", args=[ann.pk]), values)
    assert done == [("account changed", "ann")]
    details = AuditEntry.objects.get().details
    assert details["grants"] == [str(Grant.objects.get())]
    assert "Last name" in details["changed"]


def test_a_new_password_is_recorded_without_it(root: Client) -> None:
    ann = make_user("ann")
    values = {"password1": PASSWORD, "password2": PASSWORD, "usable_password": "true"}
    address = reverse("admin:auth_user_password_change", args=[ann.pk])
    assert sent(root, address, values) == [("account changed", "ann")]
    ann.refresh_from_db()
    assert ann.check_password(PASSWORD)
    assert AuditEntry.objects.get().details["changed"] == ["password"]


def test_a_deletion_is_recorded_once(root: Client) -> None:
    address = reverse("admin:auth_user_delete", args=[make_user("ann").pk])
    assert sent(root, address, {"post": "yes"}) == [("account deleted", "ann")]
    assert not User.objects.filter(username="ann").exists()


def test_every_account_of_a_deleted_selection_is_recorded(root: Client) -> None:
    chosen = [make_user(name).pk for name in ("ann", "bob")]
    values = {"action": "delete_selected", "_selected_action": chosen, "post": "yes"}
    done = sent(root, reverse("admin:auth_user_changelist"), values)
    assert sorted(done) == [("account deleted", "ann"), ("account deleted", "bob")]
    assert User.objects.count() == 1
