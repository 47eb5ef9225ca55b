"""Keeps SQLite's write-ahead log open while the site runs.

The last connection that closes deletes the log and its index. The next one makes them again, which
a full disk refuses, so that nothing could be read (sqlite.org/wal.html).
"""

from __future__ import annotations

import sqlite3
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from pathlib import Path

from django.db import connection


def hold_database() -> AbstractContextManager[object]:
    """A connection that does nothing until it is closed; other databases need none."""
    if connection.vendor == "sqlite":
        # Each request reports problems with the database itself.
        with suppress(sqlite3.Error):
            address = Path(connection.settings_dict["NAME"]).absolute().as_uri() + "?mode=rw"
            own = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)
            # A statement opens the log and its index; nothing is locked after it.
            own.execute("SELECT name FROM sqlite_master LIMIT 1").fetchall()
            return closing(own)
    return nullcontext()
