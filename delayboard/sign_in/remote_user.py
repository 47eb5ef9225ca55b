"""Sign-in by a proxy that has authenticated the person, as Authelia or oauth2-proxy do."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

from allauth.socialaccount.models import SocialAccount
from django.conf import settings
from django.contrib import auth
from django.contrib.auth.backends import RemoteUserBackend
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.utils.deprecation import MiddlewareMixin

from delayboard.sign_in.accounts import CLOSED, refuse
from delayboard.sign_in.groups import NoRole, find_roles, give_roles, read_values, require_roles
from topology import audit

BACKEND = "delayboard.sign_in.remote_user.ProxyUserBackend"
# Characters of a name in Django's table of accounts.
LONGEST_NAME = 150
# Pages of other ways to sign in, for somebody who has no role by the proxy.
SIGN_IN_PAGES = ("/login/", "/second-factor/authenticate/", "/second-factor/webauthn/login/")


class ProxyUserBackend(RemoteUserBackend):
    """Accounts of the proxy: no header opens one with a password or one of a provider."""

    def configure_user(self, request: HttpRequest | None, user: Any, created: bool = True) -> Any:
        if created:
            user.set_unusable_password()
            user.save(update_fields=["password"])
            details = {"proxy": peer_of(request) if request else ""}
            audit.record(None, "account added", what=user.get_username(), details=details)
        return user

    def get_user(self, user_id: Any) -> Any:
        """The account; none while no proxy is configured, which only websockets ask here."""
        return super().get_user(user_id) if settings.REMOTE_USER_PROXIES else None


class ProxyUserMiddleware(MiddlewareMixin):
    """Signs in whom the header of a trusted proxy names, and ends the session without it.

    As Django's RemoteUserMiddleware, which takes the header from everybody.
    """

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        name = read_header(request, settings.REMOTE_USER_HEADER) if is_trusted(request) else ""
        is_by_proxy = request.session.get(auth.BACKEND_SESSION_KEY) == BACKEND
        if not name:
            if is_by_proxy:
                auth.logout(request)
            return None
        if request.user.is_authenticated:
            # A person who has signed in with a password stays, so that an administrator can.
            if not is_by_proxy or request.user.get_username() == name:
                return None
            auth.logout(request)
        if request.path_info.startswith(SIGN_IN_PAGES):
            return None
        return _sign_in(request, name)


def _sign_in(request: HttpRequest, name: str) -> HttpResponse | None:
    """None when the person is signed in, else the page that says why not."""
    if len(name) > LONGEST_NAME or not name.isprintable():
        return refuse(
            request,
            f"The proxy sent no name of an account in “{settings.REMOTE_USER_HEADER}”. Ask an "
            f"administrator to send a name with at most {LONGEST_NAME} characters.",
        )
    text = read_header(request, settings.REMOTE_USER_GROUPS_HEADER)
    groups = read_values({"groups": text.split(",")}, "groups")
    account = User.objects.filter(username=name).first()
    if account is not None and account.has_usable_password():
        return refuse(
            request,
            f"The account “{name}” has a password in Delayboard, so a proxy cannot "
            "open it. Ask an administrator to rename it, or to disable its password.",
        )
    if account is not None and SocialAccount.objects.filter(user=account).exists():
        return refuse(
            request,
            f"The account “{name}” is that of a provider, so a proxy cannot open it. Ask an "
            "administrator to rename it.",
        )
    if account is not None and not account.is_active:
        return refuse(request, CLOSED)
    try:
        require_roles(groups, settings.REMOTE_USER_GROUPS_HEADER)
    except NoRole as refusal:
        if account is not None:
            give_roles(account, {}, groups)
        return refuse(request, str(refusal))
    user = ProxyUserBackend().authenticate(request, remote_user=name)
    assert isinstance(user, User)
    give_roles(user, find_roles(groups), groups)
    auth.login(request, user, backend=BACKEND)
    return None


def peer_of(request: HttpRequest) -> str:
    """The address that is connected to us, also where a proxy names its client.

    delayboard/asgi.py keeps it before it reads X-Forwarded-For.
    """
    peer = getattr(request, "scope", {}).get("peer")
    return str(peer[0]) if peer else str(request.META.get("REMOTE_ADDR", ""))


def is_trusted(request: HttpRequest) -> bool:
    """Whether the request comes from one of REMOTE_USER_PROXIES."""
    try:
        address = ip_address(peer_of(request))
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    return any(address in network for network in settings.REMOTE_USER_PROXIES)


def read_header(request: HttpRequest, name: str) -> str:
    """The value of a header; Django decodes the bytes as latin-1, and proxies send UTF-8."""
    value = request.headers.get(name, "").strip()
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value
