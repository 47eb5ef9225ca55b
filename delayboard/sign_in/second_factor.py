"""Codes of an authenticator app and passkeys for accounts with a password: who must have one."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from allauth.core.internal.cryptokit import normalize_user_code
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal.auth import TOTP
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.deprecation import MiddlewareMixin

from topology import access, audit
from topology.models import Role
from topology.models.secrets import open_secret, seal_secret

# Key of a session that may do nothing but add a second factor.
MISSING = "second_factor_missing"
FACTORS = (Authenticator.Type.TOTP, Authenticator.Type.WEBAUTHN)
# Time for which a code is valid: its period, the one before and the one after.
CODES_VALID_FOR = timedelta(seconds=90)
OPEN_PAGES = ("mfa_", "account_", "logout", "login")


class SecondFactorAdapter(DefaultMFAAdapter):
    """Secrets are encrypted as passwords of brokers are; a required factor stays."""

    error_messages = DefaultMFAAdapter.error_messages | {
        "cannot_delete_authenticator": "Your role requires a second factor. Add another one first.",
        "incorrect_code": "This code is not correct. Enter the code that the app shows now.",
    }

    def encrypt(self, text: str) -> str:
        return seal_secret(text)

    def decrypt(self, encrypted_text: str) -> str:
        return open_secret(encrypted_text)

    def get_totp_label(self, user: Any) -> str:
        return str(user.get_username())

    def generate_authenticator_name(self, user: Any, type: Any) -> str:
        return f"Passkey {Authenticator.objects.filter(user=user, type=type).count() + 1}"

    def can_delete_authenticator(self, authenticator: Authenticator) -> bool:
        others = Authenticator.objects.filter(user=authenticator.user, type__in=FACTORS)
        return not is_required(authenticator.user) or others.count() > 1


def mark_code_used(totp: TOTP, code: str) -> bool:
    """Whether nobody used this code before, in any process: it is valid for a minute and a half.

    django-allauth notes it in its cache, which is one of each process.
    """
    now, code = timezone.now(), normalize_user_code(code)
    with transaction.atomic():
        row = Authenticator.objects.select_for_update().get(pk=totp.instance.pk)
        valid_from = (now - CODES_VALID_FOR).isoformat()
        used = {one: at for one, at in row.data.get("used", {}).items() if at > valid_from}
        if code in used:
            return False
        row.data["used"] = {**used, code: now.isoformat()}
        row.save(update_fields=["data"])
    return True


def is_required(user: User) -> bool:
    """Whether SECOND_FACTOR_ROLE requires one: the provider decides about its own accounts."""
    if not settings.SECOND_FACTOR_ROLE or not user.has_usable_password():
        return False
    least = Role[settings.SECOND_FACTOR_ROLE.upper()]
    return max((role for _, role in access.read_rights(user)), default=0) >= least


def has_factor(user: User) -> bool:
    return bool(Authenticator.objects.filter(user=user, type__in=FACTORS).exists())


def note_missing(sender: Any, request: HttpRequest, user: User, **kwargs: Any) -> None:
    """Receives Django's signal of a sign-in."""
    if is_required(user) and not has_factor(user):
        request.session[MISSING] = True


def record_added(sender: Any, user: User, **kwargs: Any) -> None:
    """Receives django-allauth's signal of a new factor, which is stored already."""
    kind = kwargs["authenticator"].get_type_display()
    audit.try_record(user, "second factor added", what=user.get_username(), details={"kind": kind})


def record_removed(sender: Any, request: HttpRequest, user: User, **kwargs: Any) -> None:
    """Receives django-allauth's signal of a factor that its owner removed."""
    kind = kwargs["authenticator"].get_type_display()
    audit.try_record(
        user, "second factor removed", what=user.get_username(), details={"kind": kind}
    )
    note_missing(sender, request, user)


def reset(actor: Any, user: User) -> int:
    """Delete all factors and recovery codes of somebody who lost them; returns the number."""
    with transaction.atomic():
        audit.record(actor, "second factor reset", what=user.get_username())
        return int(Authenticator.objects.filter(user=user).delete()[0])


class SecondFactorMiddleware(MiddlewareMixin):
    """Leads to the page of second factors while the account must have one and has none."""

    def process_view(self, request: HttpRequest, *_: object) -> HttpResponse | None:
        if not request.user.is_authenticated or not request.session.get(MISSING):
            return None
        match = request.resolver_match
        if match is not None and (match.url_name or "").startswith(OPEN_PAGES):
            return None
        if has_factor(request.user):
            del request.session[MISSING]
            return None
        return redirect("mfa_index")
