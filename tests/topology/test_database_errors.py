"""Each refusal of a database or a disk has its sentence."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import psycopg
import pytest
from django import db

from topology.database.errors import Trouble, explain


def wrapped(cause: Exception, kind: type[db.Error] = db.OperationalError) -> db.Error:
    error = kind(str(cause))
    error.__cause__ = cause
    return error


def of_sqlite(statement: str, path: Path | str = ":memory:") -> sqlite3.Error:
    with pytest.raises(sqlite3.Error) as caught:
        sqlite3.connect(path, timeout=0).execute(statement)
    return caught.value


@pytest.mark.parametrize(
    ("statement", "trouble"),
    [
        ("SELECT * FROM absent", Trouble.NOT_MIGRATED),
        ("SELECT absent FROM (SELECT 1 AS one)", Trouble.NOT_MIGRATED),
        ("SELEC", None),
    ],
)
def test_a_statement_that_sqlite_refuses(statement: str, trouble: Trouble | None) -> None:
    assert explain(wrapped(of_sqlite(statement))) is trouble


def test_files_that_sqlite_cannot_use(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.Error) as caught:
        sqlite3.connect(tmp_path / "absent" / "file")
    assert explain(wrapped(caught.value)) is Trouble.CANNOT_OPEN
    (tmp_path / "text").write_text("no database at all" * 100)
    error = of_sqlite("SELECT * FROM one", tmp_path / "text")
    assert explain(wrapped(error, db.DatabaseError)) is Trouble.DAMAGED
    with sqlite3.connect(tmp_path / "locked") as holder:
        holder.execute("BEGIN EXCLUSIVE")
        assert explain(wrapped(of_sqlite("SELECT 1 FROM one", tmp_path / "locked"))) is (
            Trouble.LOCKED
        )


@pytest.mark.parametrize(
    ("cause", "trouble"),
    [
        (psycopg.errors.DiskFull(), Trouble.FULL),
        (psycopg.errors.UndefinedTable(), Trouble.NOT_MIGRATED),
        (psycopg.errors.ReadOnlySqlTransaction(), Trouble.READ_ONLY),
        (psycopg.errors.LockNotAvailable(), Trouble.LOCKED),
        (psycopg.errors.CannotConnectNow(), Trouble.UNREACHABLE),
        (psycopg.errors.SyntaxError(), None),
        (psycopg.OperationalError("connection refused"), Trouble.UNREACHABLE),
    ],
)
def test_what_postgresql_says(cause: Exception, trouble: Trouble | None) -> None:
    assert explain(wrapped(cause)) is trouble


def test_disks_and_what_is_neither() -> None:
    assert explain(OSError(errno.ENOSPC, "no space")) is Trouble.FULL
    assert explain(OSError(errno.ENOENT, "no file")) is None
    assert explain(ValueError()) is None
    assert explain(db.DatabaseError("Forced update did not affect any rows.")) is None
    assert explain(None) is None
