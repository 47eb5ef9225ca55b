"""The forms of django-allauth for second factors; wrong codes count as wrong passwords do."""

from __future__ import annotations

from typing import Any

from allauth.core import context
from allauth.mfa.base.forms import AuthenticateForm, ReauthenticateForm
from allauth.mfa.models import Authenticator
from allauth.mfa.webauthn.forms import AddWebAuthnForm, LoginWebAuthnForm
from axes.handlers.proxy import AxesProxyHandler
from django.contrib.auth.signals import user_login_failed
from django.core.exceptions import ValidationError

from delayboard.sign_in.throttle import CHECKING


class _Counted:
    """Checks a code within the limits of failed sign-ins, one after another."""

    user: Any

    def clean_code(self) -> str:
        request = context.request
        credentials = {"username": self.user.get_username()}
        with CHECKING:
            if not AxesProxyHandler.is_allowed(request, credentials):
                request.axes_locked_out = True
                user_login_failed.send(__name__, credentials=credentials, request=request)
                raise ValidationError("Too many failed sign-ins.")
            try:
                return str(super().clean_code())  # type: ignore[misc]
            except ValidationError:
                user_login_failed.send(__name__, credentials=credentials, request=request)
                raise


class CodeForm(_Counted, AuthenticateForm):
    """The code after the password."""


class RepeatedCodeForm(_Counted, ReauthenticateForm):
    """The code before a change of the second factors."""


class PasskeySignInForm(LoginWebAuthnForm):
    """A passkey in the place of the password: it ends with the password."""

    def clean_credential(self) -> Authenticator:
        authenticator: Authenticator = super().clean_credential()
        if not authenticator.user.has_usable_password():
            raise ValidationError(
                "The password of this account is disabled, and its passkeys with it. Use the "
                "sign-in of your company, or ask an administrator."
            )
        return authenticator


class PasskeyForm(AddWebAuthnForm):
    """A new passkey, which by default replaces the password too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["name"].label = "Name"
        self.fields["passwordless"].label = "Sign in without a password"
        self.fields[
            "passwordless"
        ].help_text = "The device must support it and verify you, by a fingerprint or a PIN."
        self.fields["passwordless"].initial = True
