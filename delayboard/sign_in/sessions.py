"""The session store: rows in the database, and signed cookies for sign-ins that it does not accept.

So users can sign in and read with a full disk; it is no faster than Django's. A signed cookie ends
after an hour, and before only by a new password or by closing the account.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django import db
from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends import db as rows
from django.contrib.sessions.backends.base import UpdateError
from django.contrib.sessions.models import Session
from django.core import signing
from django.http import HttpRequest
from django.utils import timezone
from django.utils.crypto import salted_hmac

from topology.audit import client_address
from topology.database.errors import note_refusal, try_write, waiting_briefly

# Keys of a session: its absolute end, its last use and its begin, in seconds.
ENDS_AT, USED_AT, BEGAN_AT = "ends_at", "used_at", "began_at"
SALT = "delayboard.sign_in.sessions"
SEALED_SECONDS = 3600
# Seconds between two notes of the last use, each of which is a write.
NOTE_SECONDS = 60
# Keys of a session, for the list of sessions: address and browser of who began it.
ADDRESS, BROWSER = "address", "browser"
LONGEST_BROWSER = 200
# Keys that a session in a cookie does not have: too long, or of no use there.
NOT_SEALED = ("provider_id_token",)


@dataclass(frozen=True)
class SignedIn:
    """A session of a person, for a list. `name` is no key: it opens nothing."""

    name: str
    user_id: int
    address: str
    browser: str
    began_at: datetime | None
    used_at: datetime | None
    is_current: bool


class SessionStore(rows.SessionStore):
    def load(self) -> dict[str, Any]:
        """The session's data; empty, and without a key, when it has expired or is no session."""
        if not is_sealed(self.session_key):
            return super().load()
        age = min(SEALED_SECONDS, self.get_session_cookie_age())
        try:
            data: dict[str, Any] = signing.loads(self.session_key or "", salt=SALT, max_age=age)
        except signing.BadSignature:
            data = {}
        if data.get(ENDS_AT, 0) <= time.time():
            self._session_key = None
            return {}
        return data

    def save(self, must_create: bool = False) -> None:
        """Write the row. While the database refuses, an old row stays, and a new one is sealed."""
        if must_create or not is_sealed(self.session_key):
            try:
                with waiting_briefly():
                    return super().save(must_create)
            except (db.Error, UpdateError) as error:
                # An update that fails for whatever reason is an UpdateError.
                cause = error.__context__ if isinstance(error, UpdateError) else error
                if not note_refusal("The session's row", cause):
                    raise
                if not must_create:
                    return None
        data = self._get_session(no_load=must_create)  # type: ignore[attr-defined]
        data = {name: value for name, value in data.items() if name not in NOT_SEALED}
        last = int(time.time()) + SEALED_SECONDS
        data[ENDS_AT] = min(last, data.get(ENDS_AT, last))
        self._session_key = signing.dumps(data, salt=SALT, compress=True)
        return None

    def delete(self, session_key: str | None = None) -> None:
        """Delete the row; while the database refuses, it stays until it expires."""
        key, remove = session_key or self.session_key, super().delete
        if not is_sealed(key):
            try_write("The end of a session", lambda: remove(key))


def read_sessions(keys: Collection[str]) -> dict[str, dict[str, Any]]:
    """The data of these sessions by key, in one query; without those that have ended."""
    stores = {key: SessionStore(key) for key in keys}
    asked = [key for key in keys if not is_sealed(key)]
    found = {
        row.session_key: stores[row.session_key].decode(row.session_data)
        for row in Session.objects.filter(session_key__in=asked, expire_date__gt=timezone.now())
    }
    return found | {key: stores[key].load() for key in keys if is_sealed(key)}


def list_sessions(current: str | None, user_id: int | None = None) -> list[SignedIn]:
    """The sessions of this person, or of everybody, the last used first.

    Those that are in a cookie alone, which began while the database took no writes, are missing.
    """
    found = []
    for row in Session.objects.filter(expire_date__gt=timezone.now()):
        data = SessionStore().decode(row.session_data)
        owner = int(data.get(SESSION_KEY, 0))
        if owner and user_id in (None, owner):
            found.append(
                SignedIn(
                    _name_of(row.session_key),
                    owner,
                    data.get(ADDRESS, ""),
                    data.get(BROWSER, ""),
                    _moment(data.get(BEGAN_AT)),
                    _moment(data.get(USED_AT)),
                    row.session_key == current,
                )
            )
    return sorted(found, key=lambda one: one.used_at or _moment(0), reverse=True)  # type: ignore[arg-type,return-value]


def end_session(name: str, user_id: int | None = None) -> int | None:
    """End the session of this name, if it is of this person; returns whose it was."""
    for row in Session.objects.all():
        owner = int(SessionStore().decode(row.session_data).get(SESSION_KEY, 0))
        if _name_of(row.session_key) == name and owner and user_id in (None, owner):
            row.delete()
            return owner
    return None


def _name_of(key: str) -> str:
    return salted_hmac(SALT, key, algorithm="sha256").hexdigest()[:32]


def _moment(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def is_sealed(key: str | None) -> bool:
    """Whether the key contains the data itself: the key of a row has no colon."""
    return key is not None and ":" in key


def begin(sender: Any, request: HttpRequest, **kwargs: Any) -> None:
    """Receives Django's signal of a sign-in: the absolute time begins."""
    request.session[ENDS_AT] = int(time.time() + settings.SESSION_MAX_HOURS * 3600)
    request.session[BEGAN_AT] = int(time.time())
    request.session[ADDRESS] = client_address(request) or ""
    request.session[BROWSER] = request.META.get("HTTP_USER_AGENT", "")[:LONGEST_BROWSER]
    _restart_idle_time(request.session)


def note_use(session: Any) -> None:
    """Begin the idle time again, at most once a minute."""
    if SESSION_KEY in session and time.time() - session.get(USED_AT, 0) >= NOTE_SECONDS:
        _restart_idle_time(session)


def _restart_idle_time(session: Any) -> None:
    session[USED_AT] = now = int(time.time())
    ends_at = min(now + settings.SESSION_COOKIE_AGE, session.get(ENDS_AT, now))
    session.set_expiry(datetime.fromtimestamp(ends_at, UTC))
