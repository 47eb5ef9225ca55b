"""Ends the live pages whose users may not watch them any more, with one check for all pages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.contrib.auth.models import User
from django.utils.crypto import constant_time_compare

from delayboard.live import subjects
from delayboard.sign_in.sessions import read_sessions
from topology.access import remember_grants
from topology.database.errors import explain

logger = logging.getLogger(__name__)

NOT_ALLOWED = 4403
# Close codes of a WebSocket (RFC 6455 and its registry).
TRY_AGAIN_LATER = 1013
CHECK_SECONDS = 10.0


@dataclass(frozen=True, eq=False)
class OpenPage:
    """A subject, `kind` and `name`, that a user watches in a session."""

    session_key: str
    user_id: int
    kind: str
    name: str


class Guard:
    """The open pages of an event loop."""

    def __init__(self) -> None:
        self._ends: dict[OpenPage, asyncio.Future[int]] = {}
        self._checks: asyncio.Task[None] | None = None

    async def wait_for_end(self, page: OpenPage) -> int:
        """Return a close code when a right was taken away, the account closed, the session ended.

        The same holds for a new password, and when the database cannot say.
        """
        end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ends[page] = end
        if self._checks is None:
            self._checks = asyncio.create_task(self._check_all())
        try:
            return await end
        finally:
            del self._ends[page]
            if not self._ends:
                self._checks.cancel()
                self._checks = None

    async def _check_all(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            pages = list(self._ends)
            try:
                ended, code = await database_sync_to_async(find_ended)(pages), NOT_ALLOWED
            except Exception as error:
                ended, code = pages, TRY_AGAIN_LATER
                if trouble := explain(error):
                    logger.warning("%d live pages are closed: %s", len(pages), trouble)
                else:
                    logger.exception("Delayboard could not check who may watch live pages.")
            for page in ended:
                if page in self._ends and not self._ends[page].done():
                    self._ends[page].set_result(code)


def find_ended(pages: Collection[OpenPage]) -> list[OpenPage]:
    """The pages whose session ended or is another user's now, or whose user may not watch."""
    sessions = read_sessions({page.session_key for page in pages})
    users = User.objects.filter(is_active=True).in_bulk({page.user_id for page in pages})
    remember_grants(*users.values())
    routes = {(page.kind, page.name) for page in pages}
    found = {route: subjects.find(*route, settings.POLL_SECONDS) for route in routes}

    def may_stay(page: OpenPage) -> bool:
        user, subject = users.get(page.user_id), found[page.kind, page.name]
        if user is None or subject is None:
            return False
        session = sessions.get(page.session_key, {})
        return is_session_of(session, user) and subjects.may_watch(user, subject)

    return [page for page in pages if not may_stay(page)]


def is_session_of(session: dict[str, Any], user: User) -> bool:
    """Whether this user signed in there, with the password of today."""
    signature = session.get(HASH_SESSION_KEY, "")
    return session.get(SESSION_KEY) == str(user.pk) and constant_time_compare(
        signature, user.get_session_auth_hash()
    )


guard = Guard()
