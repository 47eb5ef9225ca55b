"""Codes after the password: their limits, their requirement by role, their reset."""

from __future__ import annotations

import time
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, format_hotp_value, hotp_value
from django.contrib.auth.models import User
from django.core.cache import cache
from django.core.management import call_command
from django.test import Client
from pytest_django import Settings

from delayboard.sign_in.throttle import PAIR_LIMIT
from tests.builders import make_user
from topology.models import AuditEntry, Role

pytestmark = pytest.mark.django_db
PASSWORD = "a long enough password"
KEY = "JBSWY3DPEHPK3PXP"


@pytest.fixture(autouse=True)
def _empty_memory() -> Iterator[None]:
    """A code is accepted once, which the cache knows."""
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def ada() -> User:
    user = make_user("ada", Role.OPERATOR)
    TOTP.activate(user, KEY)
    return user


def code() -> str:
    return str(format_hotp_value(hotp_value(KEY, int(time.time()) // 30)))


def sign_in(client: Client) -> Any:
    return client.post("/login/", {"username": "ada", "password": PASSWORD})


def is_signed_in(client: Client) -> bool:
    return client.get("/brokers/").status_code == 200


def test_the_password_alone_opens_nothing(ada: User) -> None:
    client = Client()
    answer = sign_in(client)
    assert answer["Location"] == "/second-factor/authenticate/"
    assert not is_signed_in(client)
    page = client.get("/second-factor/authenticate/").content.decode()
    assert "Enter the code of your authenticator app, or a recovery code." in page
    assert client.post("/second-factor/authenticate/", {"code": code()})["Location"] == "/"
    assert is_signed_in(client)


def test_a_code_is_used_once_whichever_process_is_asked(ada: User) -> None:
    one, other, posted = Client(), Client(), code()
    for client in (one, other):
        sign_in(client)
        answer = client.post("/second-factor/authenticate/", {"code": posted})
        # Another process has another cache.
        cache.clear()
    assert is_signed_in(one)
    assert not is_signed_in(other)
    assert "This code is not correct." in answer.content.decode()
    Authenticator.objects.update(data=Authenticator.objects.get().data | {"used": {posted: "2026"}})
    assert other.post("/second-factor/authenticate/", {"code": posted}).status_code == 302
    assert list(Authenticator.objects.get().data["used"]) == [posted]


def test_wrong_codes_count_as_wrong_passwords_do(ada: User) -> None:
    client = Client()
    sign_in(client)
    statuses = [
        client.post("/second-factor/authenticate/", {"code": "000000"}).status_code
        for _ in range(PAIR_LIMIT)
    ]
    assert statuses == [200] * (PAIR_LIMIT - 1) + [429]
    assert client.post("/second-factor/authenticate/", {"code": code()}).status_code == 429
    assert sign_in(Client()).status_code == 429


def test_a_recovery_code_replaces_the_factor_once(ada: User) -> None:
    recovery = RecoveryCodes.activate(ada).get_unused_codes()[0]
    for status in (302, 200):
        client = Client()
        sign_in(client)
        posted = client.post("/second-factor/authenticate/", {"code": recovery})
        assert posted.status_code == status


def test_the_key_of_the_app_is_encrypted_in_the_database(ada: User) -> None:
    assert KEY not in str(Authenticator.objects.get().data)


def test_a_role_may_require_one_and_then_no_page_opens_before(settings: Settings) -> None:
    settings.SECOND_FACTOR_ROLE = "operator"
    make_user("ada", Role.OPERATOR)
    client = Client()
    assert sign_in(client).status_code == 302
    for address in ("/", "/brokers/", "/admin/", "/sessions/"):
        assert client.get(address)["Location"] == "/second-factor/"
    page = client.get("/second-factor/").content.decode()
    assert "Your role requires a second factor." in page
    client.get("/second-factor/totp/activate/")
    client.post("/confirm/?next=/second-factor/totp/activate/", {"password": PASSWORD})
    form = client.get("/second-factor/totp/activate/").context["form"]
    posted = format_hotp_value(hotp_value(form.secret, int(time.time()) // 30))
    answer = client.post("/second-factor/totp/activate/", {"code": posted})
    assert answer["Location"] == "/second-factor/recovery-codes/"
    assert is_signed_in(client)
    assert (
        "Each replaces your second factor once." in client.get(answer["Location"]).content.decode()
    )
    refused = client.post("/second-factor/totp/deactivate/")
    assert "Your role requires a second factor. Add another one first." in refused.content.decode()


def test_a_lower_role_and_a_provider_need_none(settings: Settings) -> None:
    settings.SECOND_FACTOR_ROLE = "admin"
    make_user("ada", Role.OPERATOR)
    client = Client()
    sign_in(client)
    assert is_signed_in(client)


def test_an_admin_or_a_command_resets_the_factor_of_somebody_who_lost_it(ada: User) -> None:
    admin = Client()
    admin.force_login(make_user("root", Role.ADMIN))
    assert "Reset second factor" in admin.get("/permissions/?user=ada").content.decode()
    admin.post("/permissions/reset-second-factor/", {"user": "ada"})
    assert not Authenticator.objects.exists()
    TOTP.activate(ada, KEY)
    output = StringIO()
    call_command("reset_second_factor", "ada", stdout=output)
    assert output.getvalue() == "1 second factor of ada deleted.\n"
    names = AuditEntry.objects.filter(action="second factor reset").values_list(
        "username", flat=True
    )
    assert sorted(names) == ["delayboard", "root"]


def test_nobody_resets_the_own_factor_without_a_confirmation() -> None:
    root = make_user("root", Role.ADMIN)
    TOTP.activate(root, KEY)
    admin = Client()
    admin.force_login(root)
    answer = admin.post("/permissions/reset-second-factor/", {"user": "root"}, follow=True)
    assert "You cannot reset your own second factor." in answer.content.decode()
    assert Authenticator.objects.exists()


def test_the_last_passkey_of_a_role_that_needs_one_stays(settings: Settings) -> None:
    settings.SECOND_FACTOR_ROLE = "operator"
    ada = make_user("ada", Role.OPERATOR)
    client = Client()
    sign_in(client)
    client.post("/confirm/?next=/", {"password": PASSWORD})
    first, second = (
        Authenticator.objects.create(user=ada, type="webauthn", data={"name": name})
        for name in ("Phone", "Key")
    )
    for passkey in (first, second):
        answer = client.post(f"/second-factor/webauthn/keys/{passkey.pk}/remove/")
        assert answer["Location"] == "/second-factor/webauthn/"
    assert Authenticator.objects.get() == second
    page = client.get("/second-factor/").content.decode()
    assert "Your role requires a second factor. Add another one first." in page


def test_an_operator_resets_nobody(ada: User) -> None:
    client = Client()
    client.force_login(make_user("eve", Role.OPERATOR))
    assert client.post("/permissions/reset-second-factor/", {"user": "ada"}).status_code == 403
    assert client.get("/permissions/?user=ada").status_code == 403
    assert Authenticator.objects.exists()
