"""Explains in two sentences why a database, or a disk, refused an operation, and tries writes that
reading and signing in go on without: not waited for, logged when refused.

SQLite's result codes: sqlite.org/rescode.html. PostgreSQL's: appendix "PostgreSQL Error Codes".
"""

from __future__ import annotations

import errno
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

from django import db
from django.db import connection, transaction

# How psycopg and PostgreSQL's library word a connection that TLS prevented.
_TLS = re.compile(r"connection (?:failed|is bad):.*(?:SSL|sslmode|certificate)", re.DOTALL)
logger = logging.getLogger(__name__)
# Milliseconds that an optional write waits for the database: longer than a busy worker holds it,
# and short enough for a page.
WAIT_MS = 3000
# Seconds after a refusal in which no optional write waits.
MEMORY_SECONDS = 10.0
_refused_at = -MEMORY_SECONDS


class Trouble(Enum):
    """Why, and the next step."""

    FULL = ("The disk is full.", "Free space on the disk and try again.")
    LOCKED = (
        "Another process locks the database.",
        "Try again in a few seconds.",
    )
    NOT_MIGRATED = (
        "The database does not have the tables of this version.",
        "Run manage.py migrate and try again.",
    )
    CANNOT_OPEN = (
        "Delayboard cannot open the database.",
        "Check that its folder exists and that Delayboard may write to it.",
    )
    READ_ONLY = (
        "The database is read-only.",
        "Check the permissions of its file and folder, or the server's state.",
    )
    DAMAGED = ("The database is damaged.", "Restore it from a backup.")
    DISK_ERROR = (
        "The disk of the database reports an error.",
        "Check the disk and the system's log.",
    )
    UNREACHABLE = (
        "Delayboard cannot connect to the database server.",
        "Check that the server runs, has free connections, and that DATABASE_URL is right.",
    )

    NOT_ENCRYPTED = (
        "The TLS connection to the database server failed.",
        "Check sslmode and sslrootcert in DATABASE_URL, and the server's certificate.",
    )

    @property
    def why(self) -> str:
        return self.value[0]

    @property
    def next_step(self) -> str:
        return self.value[1]

    def __str__(self) -> str:
        return f"{self.why} {self.next_step}"


# Prefix of an error's name -> sentence; the first match counts, so a prefix covers extended codes.
SQLITE_CODES = {
    "SQLITE_FULL": Trouble.FULL,
    # The index of the write-ahead log found no room.
    "SQLITE_IOERR_SHMSIZE": Trouble.FULL,
    "SQLITE_IOERR": Trouble.DISK_ERROR,
    "SQLITE_BUSY": Trouble.LOCKED,
    "SQLITE_LOCKED": Trouble.LOCKED,
    "SQLITE_CANTOPEN": Trouble.CANNOT_OPEN,
    "SQLITE_READONLY": Trouble.READ_ONLY,
    "SQLITE_CORRUPT": Trouble.DAMAGED,
    "SQLITE_NOTADB": Trouble.DAMAGED,
}
POSTGRES_CODES = {
    "53100": Trouble.FULL,
    "53300": Trouble.UNREACHABLE,
    "08": Trouble.UNREACHABLE,
    "28": Trouble.UNREACHABLE,
    "3D": Trouble.UNREACHABLE,
    "57P": Trouble.UNREACHABLE,
    "55P03": Trouble.LOCKED,
    "40": Trouble.LOCKED,
    "25006": Trouble.READ_ONLY,
    "42P01": Trouble.NOT_MIGRATED,
    "42703": Trouble.NOT_MIGRATED,
}
DISK_CODES = {
    errno.ENOSPC: Trouble.FULL,
    errno.EDQUOT: Trouble.FULL,
    errno.EROFS: Trouble.READ_ONLY,
}


def explain(error: BaseException | None) -> Trouble | None:
    """What is wrong with the database or the disk; None when the error is about something else."""
    if isinstance(error, OSError):
        return DISK_CODES.get(error.errno or 0)
    if not isinstance(error, db.Error):
        return None
    cause = error.__cause__
    name = getattr(cause, "sqlite_errorname", None)
    if name is not None:
        return _first(SQLITE_CODES, name) or _of_schema(str(cause))
    state = getattr(cause, "sqlstate", None)
    if state is not None:
        return _first(POSTGRES_CODES, state)
    # A connection that was never made, or broke, has no code.
    if cause is None or not isinstance(error, (db.OperationalError, db.InterfaceError)):
        return None
    return Trouble.NOT_ENCRYPTED if _TLS.match(str(cause)) else Trouble.UNREACHABLE


def _first(codes: dict[str, Trouble], code: str) -> Trouble | None:
    return next((found for prefix, found in codes.items() if code.startswith(prefix)), None)


def _of_schema(text: str) -> Trouble | None:
    """SQLite has one code for all errors of a statement."""
    is_missing = text.startswith(("no such table", "no such column")) or "has no column" in text
    return Trouble.NOT_MIGRATED if is_missing else None


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
