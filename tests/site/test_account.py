"""A person's own password and preferences."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from delayboard.columns import read_columns
from tests.builders import make_user
from topology.models import AuditEntry, Role

pytestmark = pytest.mark.django_db


@pytest.fixture
def signed_in(client: Client) -> Client:
    client.force_login(make_user("ada", Role.VIEWER))
    return client


def change(client: Client, *, old: str) -> bytes:
    new = "another long passphrase"
    fields = {"old_password": old, "new_password1": new, "new_password2": new}
    answer = client.post(reverse("password"), fields, follow=True)
    assert answer.status_code == 200
    return bytes(answer.content)


def test_a_password_is_changed_and_the_change_is_audited_without_it(signed_in: Client) -> None:
    assert b"Your password was changed." in change(signed_in, old="a long enough password")
    assert User.objects.get().check_password("another long passphrase")
    entry = AuditEntry.objects.get(action="password changed")
    assert (entry.username, entry.details) == ("ada", {})


def test_a_wrong_old_password_changes_nothing(signed_in: Client) -> None:
    change(signed_in, old="a guess")
    assert User.objects.get().check_password("a long enough password")
    assert not AuditEntry.objects.filter(action="password changed").exists()


def test_the_admins_page_for_it_leads_here(signed_in: Client) -> None:
    answer = signed_in.get("/admin/password_change/")
    assert (answer.status_code, answer["Location"]) == (302, reverse("password"))


def test_exact_times_are_in_the_time_zone_of_the_user(signed_in: Client) -> None:
    address = reverse("preferences")
    answer = signed_in.post(address, {"time_zone": "Asia/Kolkata"}, follow=True)
    assert b"Your preferences were saved." in answer.content
    assert b"Times in IST" in answer.content
    assert b"<option selected>Asia/Kolkata" in answer.content
    assert b"Times in IST" in signed_in.get(reverse("now")).content
    assert b"Times in IST" in signed_in.get(reverse("replays")).content
    later = Client()
    later.post(reverse("login"), {"username": "ada", "password": "a long enough password"})
    assert b"Times in IST" in later.get(address).content
    signed_in.post(address, {"time_zone": ""})
    assert b"Times in UTC" in signed_in.get(address).content


def test_a_time_zone_that_is_none_is_refused(signed_in: Client) -> None:
    answer = signed_in.post(reverse("preferences"), {"time_zone": "../etc/passwd"})
    assert b"This is not a time zone of the list." in answer.content
    assert b"Times in UTC" in answer.content


def test_the_columns_of_a_list_are_those_that_the_person_chose(signed_in: Client) -> None:
    client, address = signed_in, reverse("analytics:scheduled")
    choose = reverse("list_columns", args=["scheduled"])
    answer = client.post(choose, {"column": ["size", "no such"], "next": address})
    assert (answer.status_code, answer["Location"]) == (302, address)
    assert read_columns(answer.wsgi_request.user, "scheduled") == ["size"]
    assert read_columns(make_user("other", Role.VIEWER), "scheduled") == [
        "topology",
        "attempt",
        "delay",
    ]
    assert client.post(reverse("list_columns", args=["unknown"])).status_code == 404
