"""Sign-in by a certified provider: roles of groups, each error in one sentence, sign-out there."""

from __future__ import annotations

from collections.abc import Iterator
from html import unescape
from urllib.parse import parse_qs, urlsplit

import pytest
import responses
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from delayboard.models import EVERYBODY, GroupRole
from tests.builders import make_broker, make_user
from tests.outside.oidc import Person, configure, running_provider
from topology.models import AuditEntry, Grant, Role

pytestmark = pytest.mark.django_db
GROUPS = {"ada": ["operators", "all staff"], "eve": ["visitors"], "root": ["operators"]}


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with running_provider("http://testserver", GROUPS) as found:
        yield found


@pytest.fixture(autouse=True)
def provider(settings: Settings, issuer: str) -> str:
    configure(settings, issuer)
    return issuer


def grants_of(name: str) -> list[str]:
    rows = Grant.objects.filter(user__username=name).select_related("broker").order_by("pk")
    return [str(row).partition(" is ")[2] for row in rows]


def test_a_group_gives_its_roles_anew_at_each_sign_in() -> None:
    staging = make_broker(name="Staging")
    GroupRole.objects.create(value="operators", role=Role.OPERATOR, broker=staging)
    GroupRole.objects.create(value="all staff", role=Role.VIEWER)
    ada = Person("ada")
    answer = ada.sign_in()
    assert (answer.status_code, answer["Location"]) == (302, "/")
    assert sorted(grants_of("ada")) == ["Operator of Staging", "Viewer of every broker"]
    page = ada.site.get("/permissions/").content.decode()
    assert "Operator: role on this broker, by groups at the last sign-in" in page
    GroupRole.objects.filter(value="operators").delete()
    assert ada.sign_in().status_code == 302
    assert grants_of("ada") == ["Viewer of every broker"]
    assert User.objects.count() == SocialAccount.objects.count() == 1
    actions = list(AuditEntry.objects.order_by("pk").values_list("action", flat=True))
    assert actions[:3] == ["account added", "roles set by groups", "signed in"]
    assert actions.count("roles set by groups") == 2


def test_nobody_without_a_role_gets_an_account_and_a_lost_role_ends_access() -> None:
    eve = Person("eve")
    refused = eve.sign_in()
    assert refused.status_code == 403
    assert "None of your groups has a role in Delayboard." in refused.content.decode()
    assert not User.objects.exists()
    GroupRole.objects.create(value=EVERYBODY, role=Role.VIEWER)
    assert eve.sign_in().status_code == 302
    GroupRole.objects.all().delete()
    assert eve.sign_in().status_code == 403
    assert grants_of("eve") == []
    assert eve.site.get("/").status_code == 302
    stranger = Person("nobody").sign_in()
    assert "Your sign-in has no groups in “groups”" in stranger.content.decode()


def test_a_local_account_of_the_same_name_is_another_one() -> None:
    make_user("root", Role.ADMIN)
    GroupRole.objects.create(value="operators", role=Role.VIEWER)
    assert Person("root").sign_in().status_code == 302
    assert grants_of("root") == ["Admin of every broker"]
    account = SocialAccount.objects.get()
    assert account.user.username != "root"
    assert not account.user.has_usable_password()


def test_no_address_joins_the_provider_with_an_account_that_is_signed_in() -> None:
    GroupRole.objects.create(value=EVERYBODY, role=Role.VIEWER)
    ada = Person("ada")
    ada.site.force_login(make_user("root", Role.ADMIN))
    assert ada.sign_in("?process=connect").status_code == 403
    assert not SocialAccount.objects.exists()


def test_an_equal_subject_of_another_issuer_is_another_person(settings: Settings) -> None:
    GroupRole.objects.create(value=EVERYBODY, role=Role.VIEWER)
    Person("ada").sign_in()
    with running_provider("http://testserver", GROUPS) as other:
        configure(settings, other)
        assert Person("ada").sign_in().status_code == 302
    first, second = SocialAccount.objects.order_by("pk")
    assert (first.uid, first.user_id) == (second.uid, second.user_id - 1)
    assert str(first)


def test_a_provider_without_userinfo_signs_in_by_its_id_token(settings: Settings) -> None:
    GroupRole.objects.create(value=EVERYBODY, role=Role.VIEWER)
    (app,) = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"]
    app["settings"]["openid_configuration_overrides"] = {"userinfo_endpoint": None}
    assert Person("ada").sign_in().status_code == 302
    assert list(SocialAccount.objects.get().extra_data) == ["id_token"]


def test_claims_of_another_subject_are_refused(issuer: str) -> None:
    """OpenID Connect Core 1.0, section 5.3.2."""
    GroupRole.objects.create(value=EVERYBODY, role=Role.VIEWER)
    with responses.RequestsMock() as network:
        network.add_passthru(issuer)
        network.get(f"{issuer}/me", json={"sub": "eve", "preferred_username": "eve"})
        answer = Person("ada").sign_in()
    assert sentence_of(answer)
    assert not User.objects.exists()


def test_a_deactivated_account_is_refused() -> None:
    GroupRole.objects.create(value=EVERYBODY, role=Role.VIEWER)
    ada = Person("ada")
    ada.sign_in()
    User.objects.update(is_active=False)
    refused = ada.sign_in()
    assert refused.status_code == 403
    assert "Your account is deactivated." in refused.content.decode()


def test_sign_out_ends_the_session_of_the_provider_too() -> None:
    GroupRole.objects.create(value=EVERYBODY, role=Role.VIEWER)
    ada = Person("ada")
    ada.sign_in()
    page = ada.site.post("/logout/").content.decode()
    address = urlsplit(unescape(page.partition('content="0; url=')[2].partition('"')[0]))
    query = parse_qs(address.query)
    assert address.path == "/session/end"
    assert query["post_logout_redirect_uri"] == ["http://testserver/login/"]
    assert query["id_token_hint"][0].count(".") == 2
    assert ada.site.get("/").status_code == 302


def sentence_of(answer: object) -> str:
    text = unescape(answer.content.decode())  # type: ignore[attr-defined]
    return " ".join(
        text.partition("notice-error")[2].partition("<span>")[2].split("</span>")[0].split()
    )


def test_each_error_is_one_sentence(settings: Settings, issuer: str) -> None:
    cancelled = Person("ada").sign_in(aborts=True)
    assert sentence_of(cancelled).startswith("Company did not sign you in: it was cancelled")
    stale = Client().get("/login/provider/callback/?code=x&state=y")
    assert sentence_of(stale) == (
        "The sign-in took too long, or began in another browser. Sign in again."
    )
    configure(settings, issuer, secret="a wrong one")
    assert "Correct OIDC_CLIENT_ID" not in sentence_of(Person("ada").sign_in())
    assert "refused the client id or the client secret" in sentence_of(Person("ada").sign_in())
    configure(settings, f"{issuer}/elsewhere")
    assert "cannot reach Company" in sentence_of(Client().get("/login/provider/"))
    configure(settings, issuer.replace("127.0.0.1", "localhost"))
    assert "Ask an administrator to set OIDC_ISSUER to exactly this address." in sentence_of(
        Client().get("/login/provider/")
    )
    configure(settings, "http://127.0.0.1:9")
    assert "cannot reach Company at http://127.0.0.1:9" in sentence_of(
        Client().get("/login/provider/")
    )


@responses.activate
@pytest.mark.parametrize("name", ["token_endpoint", "userinfo_endpoint"])
def test_a_provider_with_tls_has_no_address_without(settings: Settings, name: str) -> None:
    issuer = "https://id.example.com"
    configure(settings, issuer)
    names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
    found = {"issuer": issuer} | {one: f"{issuer}/{one}" for one in names}
    address = f"{issuer}/.well-known/openid-configuration"
    responses.get(address, json=found | {name: "http://id.example.com/"})
    sentence = sentence_of(Client().get("/login/provider/"))
    assert "names an address of its own that does not begin with https://." in sentence
