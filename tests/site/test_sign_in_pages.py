"""Sessions, roles of groups, links, hidden passwords."""

from __future__ import annotations

from io import StringIO

import pytest
import time_machine
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from pytest_django import Settings

from delayboard.models import GroupRole
from tests.builders import make_broker, make_user
from topology.management.exit_codes import BadInput
from topology.models import AuditEntry, Role

pytestmark = pytest.mark.django_db
PASSWORD = "a long enough password"


@pytest.fixture
def admin() -> Client:
    return signed_in("root", Role.ADMIN)


def signed_in(name: str, role: Role | None = None) -> Client:
    if not User.objects.filter(username=name).exists():
        make_user(name, role)
    client = Client(headers={"User-Agent": "A browser <b>"})
    client.post("/login/", {"username": name, "password": PASSWORD}, REMOTE_ADDR="192.0.2.1")
    return client


def names_of(page: str) -> list[str]:
    return [part.partition('"')[0] for part in page.split('name="session" value="')[1:]]


def test_a_person_sees_and_ends_their_own_sessions_alone() -> None:
    here, there, other = signed_in("ada"), signed_in("ada"), signed_in("eve")
    page = here.get("/sessions/").content.decode()
    assert page.count("192.0.2.1") >= 2
    assert "A browser &lt;b&gt;" in page
    assert "This session" in page
    (name,) = names_of(page)
    assert str(there.session.session_key) not in page
    other.post("/sessions/end/", {"session": name})
    assert there.get("/brokers/").status_code == 200
    here.post("/sessions/end/", {"session": name})
    assert there.get("/brokers/").status_code == 302
    assert here.get("/brokers/").status_code == 200
    assert (
        "has ended already"
        in here.post("/sessions/end/", {"session": name}, follow=True).content.decode()
    )


def test_an_admin_ends_the_session_of_another_person(admin: Client) -> None:
    ada = signed_in("ada")
    page = admin.get("/sessions/?all=1").content.decode()
    (name,) = names_of(page)
    assert (
        admin.post("/sessions/end/", {"session": name, "all": "1"})["Location"]
        == "/sessions/?all=1"
    )
    assert ada.get("/brokers/").status_code == 302
    entry = AuditEntry.objects.get(action="session ended")
    assert (entry.username, entry.what) == ("root", "ada")


def test_a_role_of_a_group_is_set_changed_and_deleted_with_audit(admin: Client) -> None:
    broker = make_broker(name="Staging")
    assert "No group has a role" in admin.get("/sign-in/").content.decode()
    fields = {"value": " team-<a> ", "role": "2", "broker": broker.pk}
    admin.post("/sign-in/change/", fields)
    admin.post("/sign-in/change/", fields | {"role": "3"})
    assert [str(row) for row in GroupRole.objects.all()] == ["team-<a>: Admin of Staging"]
    page = admin.get("/sign-in/").content.decode()
    assert "team-&lt;a&gt;" in page
    admin.post("/sign-in/change/", {"delete": GroupRole.objects.get().pk})
    assert not GroupRole.objects.exists()
    actions = AuditEntry.objects.order_by("pk").values_list("action", flat=True)
    assert list(actions)[1:] == [*["role of a group set"] * 2, "role of a group deleted"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"value": "", "role": "1"}, "Enter the name of a group"),
        ({"value": "x" * 201, "role": "1"}, "Enter the name of a group"),
        ({"value": "a", "role": "9"}, "Select a role."),
        ({"value": "a", "role": "1", "broker": "999"}, "This broker no longer exists."),
        ({"delete": "x"}, "This group has no role any more."),
    ],
)
def test_bad_input_changes_nothing(admin: Client, fields: dict[str, str], sentence: str) -> None:
    page = admin.post("/sign-in/change/", fields, follow=True).content.decode()
    assert f"Nothing was changed. {sentence}" in page
    assert not GroupRole.objects.exists()


def test_only_admins_of_every_broker_set_roles_of_groups() -> None:
    operator = signed_in("ada", Role.OPERATOR)
    assert operator.get("/sign-in/").status_code == 403
    assert operator.post("/sign-in/change/", {"value": "a", "role": "3"}).status_code == 403


def make_link() -> str:
    output = StringIO()
    call_command(
        "sign_in_link", "root", "--site=http://testserver", stdout=output, stderr=StringIO()
    )
    return output.getvalue().strip()


def test_hidden_passwords_leave_a_link_for_the_last_administrator(settings: Settings) -> None:
    make_user("root", Role.ADMIN)
    settings.HIDE_LOCAL_SIGN_IN, settings.OIDC_ISSUER = True, "https://id.example.com"
    settings.OIDC_NAME = "Company"
    page = Client().get("/login/").content.decode()
    assert "Sign in with Company" in page
    assert "password" not in page.lower()
    assert Client().get("/second-factor/webauthn/login/").status_code == 403
    refused = Client().post("/login/", {"username": "root", "password": PASSWORD})
    assert refused.status_code == 403
    assert "Passwords are switched off." in refused.content.decode()
    link, client = make_link(), Client()
    assert "root" in client.get(link).content.decode()
    assert client.get("/brokers/").status_code == 302
    assert client.post(link).status_code == 302
    assert client.get("/brokers/").status_code == 200
    assert Client().post(link).status_code == 403


def test_a_link_ends_after_ten_minutes_and_with_a_new_password() -> None:
    user = make_user("root", Role.ADMIN)
    link = make_link()
    user.set_password("another long passphrase")
    user.save()
    assert Client().get(link).status_code == 403
    with time_machine.travel("2026-11-22T12:00:00Z", tick=False) as clock:
        link = make_link()
        assert Client().get(link).status_code == 200
        clock.shift(601)
        assert Client().get(link).status_code == 403
    assert Client().get("/login/link/?token=made-up").status_code == 403
    assert Client().get("/login/link/").status_code == 403


def test_no_log_has_the_token_of_a_link(caplog: pytest.LogCaptureFixture) -> None:
    make_user("root", Role.ADMIN)
    address, _, token = make_link().partition("?token=")
    assert Client(enforce_csrf_checks=True).post(f"{address}?token={token}").status_code == 403
    assert "/login/link/" in caplog.text
    assert token not in caplog.text


@pytest.mark.parametrize("name", ["sign_in_link", "reset_second_factor"])
def test_a_command_for_no_account_says_so(name: str) -> None:
    with pytest.raises(BadInput, match=r"is called “nobody”. Check the name."):
        call_command(name, "nobody")
