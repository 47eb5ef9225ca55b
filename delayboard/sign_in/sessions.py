"""The session store: rows in the database, and signed cookies while it accepts no rows.

So users can sign in and read with a full disk. A signed cookie for a row names it and ends with it.
One that never had a row can only be revoked by a new password or by closing the account; so that
session ends after an hour, also when it has become a row.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from datetime import datetime, timedelta
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

from topology.database.optional_writes import note_refusal, try_write, waiting_briefly

SIGNED_IN_AT, USED_AT = "signed_in_at", "used_at"
# In a signed cookie: the key of its row. In a session that began without a row: its last moment.
ROW, ENDS_AT = "row", "ends_at"
SALT = "delayboard.sign_in.sessions"
SEALED_SECONDS = 3600
# Each note of use is a write.
NOTE_SECONDS = 60


class SessionStore(rows.SessionStore):
    """Expires after the idle time without use, and at the latest after the absolute time."""

    def load(self) -> dict[str, Any]:
        """The session's data; empty, and without a key, when it has expired or is no session."""
        if not is_sealed(self.session_key):
            return super().load()
        try:
            age = min(SEALED_SECONDS, self.get_session_cookie_age())
            data: dict[str, Any] = signing.loads(self.session_key or "", salt=SALT, max_age=age)
        except signing.BadSignature:
            data = {}
        row = data.pop(ROW, None)
        is_ended = row is not None and not super().exists(row)
        if not data or is_ended or _remaining(data) <= 0:
            self._session_key = None
            return {}
        return data

    def save(self, must_create: bool = False) -> None:
        """Write the row; seal the data in the key instead while the database refuses."""
        data = self._get_session(no_load=must_create)  # type: ignore[attr-defined]
        if is_sealed(self.session_key):
            self._session_key = _row_of(self.session_key)
        row = None if must_create else self._session_key
        try:
            with waiting_briefly():
                super().save(must_create)
        except (db.Error, UpdateError) as error:
            # An update that fails for whatever reason is an UpdateError.
            cause = error.__context__ if isinstance(error, UpdateError) else error
            if not note_refusal("The session's row", cause):
                raise
            if row is None:
                data.setdefault(ENDS_AT, int(time.time()) + SEALED_SECONDS)
            sealed = data if row is None else data | {ROW: row}
            self._session_key = signing.dumps(sealed, salt=SALT, compress=True)

    def exists(self, session_key: str) -> bool:
        return not is_sealed(session_key) and super().exists(session_key)

    def delete(self, session_key: str | None = None) -> None:
        """Delete the row; while the database refuses, it stays until it expires."""
        key = _row_of(session_key or self.session_key)
        if key is not None:
            remove = super().delete
            try_write("The end of a session", lambda: remove(key))

    def get_expiry_age(self, **kwargs: Any) -> int:
        """Seconds that are left to the session if it is not used."""
        return int(min(super().get_expiry_age(**kwargs), _remaining(dict(self.items()))))

    def get_expiry_date(self, **kwargs: Any) -> datetime:
        last = timezone.now() + timedelta(seconds=_remaining(dict(self.items())))
        idle: datetime = super().get_expiry_date(**kwargs)
        return min(idle, last)


def read_sessions(keys: Collection[str]) -> dict[str, dict[str, Any]]:
    """The data of these sessions by key, in one query; without those that have ended."""
    stores = {key: SessionStore(key) for key in keys}
    asked = [key for key in keys if not is_sealed(key)]
    found = {
        row.session_key: stores[row.session_key].decode(row.session_data)
        for row in Session.objects.filter(session_key__in=asked, expire_date__gt=timezone.now())
    }
    return found | {key: stores[key].load() for key in keys if is_sealed(key)}


def is_sealed(key: str | None) -> bool:
    """Whether the key contains the data itself: the key of a row has no colon."""
    return key is not None and ":" in key


def _row_of(key: str | None) -> str | None:
    """The key of the row that the key is, or names; None when there is none."""
    if key is None or not is_sealed(key):
        return key
    try:
        row: str | None = signing.loads(key, salt=SALT).get(ROW)
    except signing.BadSignature:
        return None
    return row


def _remaining(data: dict[str, Any]) -> float:
    """Seconds until the session's absolute end."""
    most, now = float(settings.SESSION_MAX_HOURS * 3600), time.time()
    remaining: float = data.get(SIGNED_IN_AT, now) + most - now
    ends_in: float = data.get(ENDS_AT, now + most) - now
    return max(0.0, min(remaining, ends_in))


def begin(sender: Any, request: HttpRequest, **kwargs: Any) -> None:
    """Receives Django's signal of a sign-in: the absolute time begins."""
    request.session.pop(ENDS_AT, None)
    request.session[SIGNED_IN_AT] = request.session[USED_AT] = int(time.time())


def note_use(session: Any) -> None:
    """Begin the idle time again, at most once a minute."""
    now = int(time.time())
    if SESSION_KEY in session and now - session.get(USED_AT, 0) >= NOTE_SECONDS:
        # A session that is older than this rule begins now.
        session.setdefault(SIGNED_IN_AT, now)
        session[USED_AT] = now
