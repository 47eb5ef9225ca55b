"""The form of the sign-in page."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.forms import AuthenticationForm

from delayboard.sign_in.throttle import CHECKING


class GuardedForm(AuthenticationForm):
    """Guesses at once are checked one after another."""

    def clean(self) -> dict[str, Any]:
        with CHECKING:
            return super().clean()
