"""Writes that reading and signing in go on without: tried, not waited for, logged when refused."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django import db
from django.db import connection, transaction

from topology.database.errors import explain

logger = logging.getLogger(__name__)
# Milliseconds that an optional write waits for the database: longer than a busy worker holds it,
# and short enough for a page.
WAIT_MS = 3000
# Seconds after a refusal in which no optional write waits.
MEMORY_SECONDS = 10.0
_refused_at = -MEMORY_SECONDS


def try_write(what: str, write: Callable[[], object], *, is_audit: bool = False) -> bool:
    """Run `write` in a transaction; False, and a line in the log, when the database refuses.

    The line of an audit entry is logged however often it repeats.
    Raises what has nothing to do with the state of the database.
    """
    try:
        with waiting_briefly(), transaction.atomic():
            write()
    except db.Error as error:
        if not note_refusal(what, error, is_audit=is_audit):
            raise
        return False
    return True


def note_refusal(what: str, error: BaseException | None, *, is_audit: bool = False) -> bool:
    """Log why `what` was not written; False when the error is not about the database's state."""
    global _refused_at
    trouble = explain(error)
    if trouble is None:
        return False
    _refused_at = time.monotonic()
    extra = {"is_audit": is_audit}
    logger.warning("%s was not written: %s", what, trouble, extra=extra)
    return True


@contextmanager
def waiting_briefly() -> Iterator[None]:
    """Let SQLite wait a moment for its lock, not the 20 seconds that an action may take."""
    if connection.vendor != "sqlite":
        yield
        return
    is_refusing = time.monotonic() - _refused_at < MEMORY_SECONDS
    _wait(0 if is_refusing else WAIT_MS)
    try:
        yield
    finally:
        _wait(int(connection.settings_dict["OPTIONS"].get("timeout", 5) * 1000))


def _wait(milliseconds: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"PRAGMA busy_timeout = {milliseconds}")
