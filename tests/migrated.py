"""SQLite's test database as a copy of one that is migrated once: migrating costs five seconds."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from django.db import connection
from django.test.utils import setup_databases

ROOT = Path(__file__).parent.parent
WHAT_MAKES_THE_TABLES = ("*/migrations/*.py", "requirements.txt")


def set_up() -> Any:
    """Make the test database and return what teardown_databases asks for."""
    if connection.vendor != "sqlite":
        return _set_up()
    copy = Path(connection.settings_dict["TEST"]["NAME"])
    original = ROOT / "var" / f"migrated-{_version()}.sqlite3"
    original.parent.mkdir(exist_ok=True)
    with (original.parent / "migrated.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not original.exists():
            return _set_up_and_keep(original)
    shutil.copyfile(original, copy)
    return _set_up(keepdb=True)


def _set_up_and_keep(original: Path) -> Any:
    made = _set_up()
    for earlier in original.parent.glob("migrated-*.sqlite3"):
        earlier.unlink()
    unfinished = original.with_suffix(".part")
    kept = sqlite3.connect(unfinished)
    connection.ensure_connection()
    connection.connection.backup(kept)
    kept.close()
    unfinished.rename(original)
    return made


def _set_up(*, keepdb: bool = False) -> Any:
    return setup_databases(verbosity=0, interactive=False, serialized_aliases=[], keepdb=keepdb)


def _version() -> str:
    found = hashlib.sha256()
    for pattern in WHAT_MAKES_THE_TABLES:
        for file in sorted(ROOT.glob(pattern)):
            found.update(file.read_bytes())
    return found.hexdigest()[:16]
