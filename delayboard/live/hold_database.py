"""Keeps SQLite's write-ahead log open while the site runs.

The last connection that closes deletes the log and its index. The next one makes them again, which
a full disk refuses, so that nothing could be read (sqlite.org/wal.html).
"""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

from django.db import connection


class Held:
    """A connection that does nothing; `close` ends it. Other databases need none."""

    def __init__(self, held: sqlite3.Connection | None) -> None:
        self._held = held

    def close(self) -> None:
        if self._held is not None:
            self._held.close()


def hold_database() -> Held:
    if connection.vendor != "sqlite":
        return Held(None)
    held = None
    # Each request reports problems with the database itself.
    with suppress(sqlite3.Error):
        address = Path(connection.settings_dict["NAME"]).absolute().as_uri() + "?mode=rw"
        held = sqlite3.connect(address, uri=True, check_same_thread=False, isolation_level=None)
        # A statement opens the log and its index; nothing is locked after it.
        held.execute("SELECT name FROM sqlite_master LIMIT 1").fetchall()
    return Held(held)
