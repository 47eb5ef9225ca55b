"""Sign-in by the company's provider of OpenID Connect, with django-allauth.

Accounts are known by issuer and subject (OpenID Connect Core 1.0, section 5.7), never by a name or
an e-mail address, which a provider may let people choose.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialLogin
from allauth.socialaccount.providers.base import AuthProcess
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from django.conf import settings
from django.contrib import auth
from django.core.cache import cache
from django.http import HttpRequest

from delayboard.sign_in.accounts import refuse
from delayboard.sign_in.groups import NoRole, find_roles, give_roles, read_values, require_roles
from topology import audit

PROVIDER = "company"
# Key in the session of the ID token, for the sign-out at the provider.
ID_TOKEN = "provider_id_token"  # noqa: S105
DISCOVERY_SECONDS = 300
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
# Error of a provider -> sentence (RFC 6749, section 4.1.2.1; OpenID Connect Core 1.0, section
# 3.1.2.6).
ERRORS = {
    "access_denied": "did not sign you in: it was cancelled, or you have no access to Delayboard "
    "there. Try again, or ask its administrator.",
    "invalid_scope": "does not know a scope that Delayboard requests. Ask an administrator to "
    "correct OIDC_SCOPES.",
    "unauthorized_client": "does not allow Delayboard to sign people in. Ask its administrator to "
    "enable the authorization code flow for this client.",
    "server_error": "reports an error of its own. Try again, or ask its administrator.",
    "temporarily_unavailable": "is not available now. Try again in a few minutes.",
    "invalid_client": "refused the client id or the client secret. Ask an administrator to "
    "correct OIDC_CLIENT_ID and OIDC_CLIENT_SECRET.",
    "invalid_grant": "no longer accepts this sign-in: it took too long or was used before. Sign "
    "in again.",
}
STALE = "The sign-in took too long, or began in another browser. Sign in again."


class ProviderError(Exception):
    """The provider cannot be used; the message is one sentence with the next step."""


class CompanyProvider(OpenIDConnectOAuth2Adapter):
    """The configured provider: its discovered addresses, and the raw ID token of a sign-in."""

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(request, PROVIDER)
        self.id_token = ""

    @property
    def openid_config(self) -> dict[str, Any]:
        """What the provider publishes about itself. Raises ProviderError."""
        key = f"oidc:{settings.OIDC_ISSUER}"
        if (known := cache.get(key)) is not None:
            return dict(known)
        try:
            found = super().openid_config
        # RequestException is an OSError.
        except (OSError, ValueError) as error:
            raise ProviderError(
                f"Delayboard cannot reach {settings.OIDC_NAME} at {settings.OIDC_ISSUER}. Try "
                "again, or ask an administrator to check OIDC_ISSUER."
            ) from error
        if not isinstance(found, dict) or not all(
            isinstance(found.get(name), str) for name in ENDPOINTS
        ):
            raise ProviderError(
                f"{settings.OIDC_ISSUER} is not the address of an OpenID Connect provider. Ask "
                "an administrator to correct OIDC_ISSUER."
            )
        used = [str(found.get(name) or "") for name in (*ENDPOINTS, "userinfo_endpoint")]
        if settings.OIDC_ISSUER.startswith("https://") and any(
            address and not address.startswith("https://") for address in used
        ):
            raise ProviderError(
                f"{settings.OIDC_ISSUER} names an address of its own that does not begin with "
                "https://. Ask its administrator to correct it."
            )
        # OpenID Connect Discovery 1.0, section 4.3.
        if str(found.get("issuer", "")).rstrip("/") != settings.OIDC_ISSUER.rstrip("/"):
            raise ProviderError(
                f"The provider calls itself “{str(found.get('issuer', ''))[:200]}”. Ask an "
                "administrator to set OIDC_ISSUER to exactly this address."
            )
        cache.set(key, found, DISCOVERY_SECONDS)
        return found

    def complete_login(
        self, request: HttpRequest, app: Any, token: Any, **kwargs: Any
    ) -> SocialLogin:
        """Raises ProviderError for claims that cannot be read."""
        self.id_token = str(kwargs["response"].get("id_token") or "")
        if not self.openid_config.get("userinfo_endpoint"):
            app.settings = {**app.settings, "fetch_userinfo": False}
        try:
            login = super().complete_login(request, app, token, **kwargs)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ProviderError(explain_error("server_error")) from error
        # OpenID Connect Core 1.0, section 5.3.2: else it may be somebody else's. The nonce is left
        # out: PKCE ties the code to this browser, and the ID token comes from the provider itself.
        claims = login.account.extra_data
        subjects = {claims[one].get("sub") for one in ("id_token", "userinfo") if one in claims}
        if len(subjects) > 1:
            raise ProviderError(explain_error("server_error"))
        # Another issuer may give an equal subject to another person.
        issuer = sha256(settings.OIDC_ISSUER.encode()).hexdigest()
        login.account.provider = f"{PROVIDER}-{issuer[:32]}"
        return login


class ProviderAdapter(DefaultSocialAccountAdapter):
    """Whom the provider may sign in, and with which roles."""

    def get_app(self, request: HttpRequest, provider: str, client_id: str | None = None) -> Any:
        """The one that is configured, also for an account of an earlier issuer."""
        return super().get_app(request, PROVIDER, client_id)

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Read the groups, before an account is made. Raises ImmediateHttpResponse with a page."""
        # Else “?process=connect” would join it with the account that is signed in.
        if sociallogin.state.get("process") != AuthProcess.LOGIN:
            raise ImmediateHttpResponse(refuse(request, STALE))
        # Nobody is recognized by an address.
        sociallogin.email_addresses = []
        groups = read_groups(sociallogin)
        try:
            require_roles(groups, settings.OIDC_GROUPS_CLAIM)
        except NoRole as refusal:
            if sociallogin.is_existing:
                give_roles(sociallogin.user, {}, groups)
            auth.logout(request)
            name = sociallogin.user.get_username() or sociallogin.account.uid
            audit.try_record(None, "sign-in refused", what=name, outcome="no role for its groups")
            raise ImmediateHttpResponse(refuse(request, str(refusal))) from refusal
        if sociallogin.is_existing:
            give_roles(sociallogin.user, find_roles(groups), groups)

    def populate_user(
        self, request: HttpRequest, sociallogin: SocialLogin, data: Mapping[str, Any]
    ) -> Any:
        """Names and address for a new account, as texts that every database takes."""
        texts = {name: str(value or "").replace("\0", "") for name, value in data.items()}
        return super().populate_user(request, sociallogin, texts)

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        return True

    def save_user(self, request: HttpRequest, sociallogin: SocialLogin, form: Any = None) -> Any:
        """Add the account of somebody who signs in for the first time."""
        user = super().save_user(request, sociallogin, form)
        details = {"provider": settings.OIDC_ISSUER, "subject": sociallogin.account.uid}
        audit.record(None, "account added", what=user.get_username(), details=details)
        groups = read_groups(sociallogin)
        give_roles(user, find_roles(groups), groups)
        return user

    def on_authentication_error(
        self,
        request: HttpRequest,
        provider: Any,
        error: Any = None,
        exception: Exception | None = None,
        extra_context: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises ImmediateHttpResponse with a page for every error."""
        is_stale = "state" not in (extra_context or {})
        code = request.GET.get("error", "")
        if not code and exception is not None:
            # django-allauth has the answer of the provider only as a text.
            code = next((one for one in ERRORS if one in str(exception)), "")
        sentence = STALE if is_stale else explain_error(code)
        raise ImmediateHttpResponse(refuse(request, sentence))


def explain_error(code: str) -> str:
    """One sentence about an error code of the provider, and the next step."""
    known = ERRORS.get(code)
    shown = f" ({code[:60]})" if code else ""
    reason = known or f"did not complete the sign-in{shown}. Try again, or ask its administrator."
    return f"{settings.OIDC_NAME[:1].upper()}{settings.OIDC_NAME[1:]} {reason}"


def read_groups(sociallogin: SocialLogin) -> list[str]:
    """The values of the claim of groups, in the ID token or in the answer of userinfo."""
    data = sociallogin.account.extra_data
    parts = [data.get(name) for name in ("id_token", "userinfo")]
    found = [read_values(part, settings.OIDC_GROUPS_CLAIM) for part in parts if part]
    return list(dict.fromkeys(value for values in found for value in values))


def sign_out_address(request: HttpRequest, id_token: str, return_to: str) -> str:
    """Where the provider ends its session; "" if it offers no such address.

    OpenID Connect RP-Initiated Logout 1.0. Raises ProviderError.
    """
    address = str(CompanyProvider(request).openid_config.get("end_session_endpoint") or "")
    if not address.startswith(("https://", "http://")):
        return ""
    query = {
        "id_token_hint": id_token,
        "client_id": settings.OIDC_CLIENT_ID,
        "post_logout_redirect_uri": return_to,
    }
    return f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"
