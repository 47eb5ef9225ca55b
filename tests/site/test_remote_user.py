"""A header of a configured proxy signs people in; the same header of anybody else is nothing."""

from __future__ import annotations

from io import StringIO
from ipaddress import ip_network
from typing import Any

import pytest
from allauth.socialaccount.models import SocialAccount
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from pytest_django import Settings

from delayboard.models import EVERYBODY, GroupRole
from delayboard.sign_in.remote_user import ProxyUserBackend, is_trusted
from tests.builders import make_user
from topology.models import AuditEntry, Grant, Role

pytestmark = pytest.mark.django_db
PROXY, ELSEWHERE = "10.0.0.5", "192.0.2.7"


@pytest.fixture(autouse=True)
def _proxy(settings: Settings) -> None:
    settings.REMOTE_USER_PROXIES = [ip_network("10.0.0.0/24")]
    GroupRole.objects.create(value="operators", role=Role.OPERATOR)


def get(client: Client, name: str = "", groups: str = "operators", peer: str = PROXY) -> Any:
    headers = {"Remote-User": name, "Remote-Groups": groups} if name else {}
    return client.get("/brokers/", headers=headers, REMOTE_ADDR=peer)


def test_the_proxy_signs_in_with_the_roles_of_the_groups_and_ends_the_session() -> None:
    client = Client()
    assert get(client, "ada", "visitors, operators").status_code == 200
    ada = User.objects.get()
    assert (ada.username, ada.has_usable_password()) == ("ada", False)
    assert [str(grant) for grant in Grant.objects.all()] == ["ada is Operator of every broker"]
    assert get(client, "eve").status_code == 200
    assert client.session["_auth_user_id"] == str(User.objects.get(username="eve").pk)
    assert get(client).status_code == 302


@pytest.mark.parametrize("peer", [ELSEWHERE, "", "unix socket"])
def test_the_header_of_anybody_else_signs_nobody_in(peer: str) -> None:
    assert get(Client(), "ada", peer=peer).status_code == 302
    assert not User.objects.exists()


def test_without_a_role_the_proxy_signs_nobody_in_and_earlier_roles_end() -> None:
    get(Client(), "ada")
    refused = get(Client(), "ada", "visitors")
    assert refused.status_code == 403
    assert "None of your groups has a role in Delayboard." in refused.content.decode()
    assert not Grant.objects.exists()
    GroupRole.objects.create(value=EVERYBODY, role=Role.VIEWER)
    assert get(Client(), "ada", "").status_code == 200


def test_no_header_opens_a_local_or_a_deactivated_account() -> None:
    make_user("root", Role.ADMIN)
    refused = get(Client(), "root")
    assert "has a password in Delayboard, so a proxy cannot open it" in refused.content.decode()
    get(Client(), "ada")
    User.objects.filter(username="ada").update(is_active=False)
    assert "Your account is deactivated." in get(Client(), "ada").content.decode()
    assert "signed in" not in AuditEntry.objects.filter(username="root").values_list(
        "action", flat=True
    )


def test_no_header_opens_the_account_of_a_provider() -> None:
    user = User.objects.create_user("eve")
    SocialAccount.objects.create(user=user, provider="company-1", uid="1")
    refused = get(Client(), "eve")
    assert "The account “eve” is that of a provider" in refused.content.decode()
    assert not Grant.objects.exists()


def test_the_pages_of_sign_in_are_open_to_somebody_without_a_role_by_the_proxy() -> None:
    make_user("root", Role.ADMIN)
    client = Client(headers={"Remote-User": "root"}, REMOTE_ADDR=PROXY)
    assert client.get("/").status_code == 403
    for address in ("/login/", "/second-factor/authenticate/", "/second-factor/webauthn/login/"):
        assert client.get(address).status_code in (200, 302)
    output = StringIO()
    call_command("sign_in_link", "root", "--site=", stdout=output, stderr=StringIO())
    assert client.post(output.getvalue().strip()).status_code == 302
    assert client.get("/brokers/").status_code == 200


def test_without_a_proxy_its_sessions_end(settings: Settings) -> None:
    client = Client()
    get(client, "ada")
    settings.REMOTE_USER_PROXIES = []
    assert ProxyUserBackend().get_user(User.objects.get().pk) is None
    assert get(client, "ada").status_code == 302
    settings.REMOTE_USER_PROXIES = [ip_network(PROXY)]
    assert "_auth_user_id" not in client.session


def test_the_proxy_counts_by_its_own_address_and_not_by_the_one_it_forwards(rf: Any) -> None:
    request = rf.get("/", REMOTE_ADDR=PROXY)
    request.scope = {"peer": (ELSEWHERE, 1)}
    assert not is_trusted(request)
    request.scope = {"peer": (PROXY, 1)}
    request.META["REMOTE_ADDR"] = ELSEWHERE
    assert is_trusted(request)


def test_a_sign_out_says_that_the_proxy_signs_in_again(settings: Settings) -> None:
    client = Client()
    get(client, "ada")
    answer = client.post("/logout/", headers={"Remote-User": "ada"}, REMOTE_ADDR=PROXY)
    assert "The proxy signs you in again with the next page" in answer.content.decode()
    settings.REMOTE_USER_SIGN_OUT_URL = "https://proxy.example.com/out"
    get(client, "ada")
    answer = client.post("/logout/", headers={"Remote-User": "ada"}, REMOTE_ADDR=PROXY)
    assert "https://proxy.example.com/out" in answer.content.decode()
