"""What django-allauth asks about accounts: nobody signs up, and failures are counted by axes."""

from __future__ import annotations

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from delayboard.sign_in.throttle import CHECKING
from topology.audit import client_address

CLOSED = "Your account is deactivated. Ask an administrator to activate it."


def refuse(request: HttpRequest, sentence: str) -> HttpResponse:
    """Status 403: the account, the provider or the proxy must change before the next try."""
    return render(request, "registration/refused.html", {"sentence": sentence}, status=403)


class AccountAdapter(DefaultAccountAdapter):
    """Accounts come from an administrator, a command or a provider, never from a form."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return False

    def authenticate(self, request: HttpRequest, **credentials: Any) -> Any:
        """Check a password that is asked for again: guesses at once one after another."""
        with CHECKING:
            return super().authenticate(request, **credentials)

    def respond_user_inactive(self, request: HttpRequest, user: Any) -> HttpResponse:
        return refuse(request, CLOSED)

    def get_client_ip(self, request: HttpRequest) -> str:
        return client_address(request) or ""

    def add_message(
        self,
        request: HttpRequest,
        level: int,
        message_template: str | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Add a message, unless it is one of signing in and out, which the page shows anyway."""
        if not (message_template or "").startswith("account/"):
            super().add_message(request, level, message_template, *args, **kwargs)
