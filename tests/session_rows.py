"""Sessions of users without a sign-in; tests/site/test_sign_in.py signs in by the form."""

from __future__ import annotations

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.test import Client

from delayboard.sign_in.sessions import SessionStore, begin


def force_login(client: Client, user: User, backend: str | None = None) -> None:
    """In the place of Django's, whose signals count attempts and note addresses in ten queries."""
    user.backend = backend or client._get_backend()  # type: ignore[attr-defined]
    request = HttpRequest()
    request.session = SessionStore()
    request.session[SESSION_KEY] = str(user.pk)
    request.session[BACKEND_SESSION_KEY] = user.backend
    request.session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    begin(None, request)
    request.session.save()
    client._set_login_cookies(request)  # type: ignore[attr-defined]
