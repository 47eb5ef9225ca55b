"""The forms of the sign-in pages."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.forms import AdminAuthenticationForm
from django.contrib.auth.forms import AuthenticationForm

from delayboard.sign_in.throttle import CHECKING


class GuardedForm(AuthenticationForm):
    """The form of Delayboard's sign-in page: guesses at once are checked one after another."""

    def clean(self) -> dict[str, Any]:
        with CHECKING:
            return super().clean()


class GuardedAdminForm(AdminAuthenticationForm):
    """The same for the sign-in page of Django's admin."""

    def clean(self) -> dict[str, Any]:
        with CHECKING:
            return super().clean()
