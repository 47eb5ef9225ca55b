"""Commands of ours on a database without tables create them, or say how to."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import get_commands
from django.db import connection

from delayboard import run_command
from delayboard.run_command import ACCOUNTS, MIGRATE_FIRST, OURS

COMMANDS = sorted(name for name, app in get_commands().items() if app in OURS | ACCOUNTS)
HEADINGS = "destination"


def listing(folder: Path, database: str = "") -> subprocess.Popen[str]:
    """`manage.py scheduled`, begun."""
    variables = {**os.environ, "DELAYBOARD_VAR": str(folder), "DATABASE_URL": database}
    return subprocess.Popen(
        [sys.executable, "manage.py", "scheduled"],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_an_empty_folder_gets_its_tables_once_though_two_begin_at_once(tmp_path: Path) -> None:
    for code, out, err in [ended(one) for one in [listing(tmp_path), listing(tmp_path)]]:
        assert (code, err) == (0, "")
        assert HEADINGS in out


def test_a_database_of_somebody_else_or_of_another_version_is_left_as_it_is(
    tmp_path: Path,
) -> None:
    path = tmp_path / "other.sqlite3"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (id)")
    other.close()
    assert ended(listing(tmp_path, f"sqlite://{path}")) == (2, "", f"{MIGRATE_FIRST}\n")
    with sqlite3.connect(path) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]
    other.close()


def test_a_database_that_cannot_be_reached_is_one_sentence(tmp_path: Path) -> None:
    nowhere = "postgresql://a:b@127.0.0.1:1/none"
    code, _, err = ended(listing(tmp_path, nowhere))
    assert code == 2
    assert err == (
        "Delayboard cannot connect to the database server. Check that the server runs, has "
        "free connections, and that DATABASE_URL is right.\n"
    )


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (
            "MESSAGES_IN_FLIGHT",
            "many",
            "MESSAGES_IN_FLIGHT is “many”. Set a whole number from 1 to 10,000, or unset it for "
            "1,000.",
        ),
        (
            "NIGHTLY_CRON",
            "10 0 * * * *",
            "NIGHTLY_CRON is “10 0 * * * *”, which is no cron expression (it has not 5 fields). "
            "Set minute, hour, day, month and weekday, such as “10 0 * * *”.",
        ),
        ("EMAIL_USE_TLS", "yes", "EMAIL_USE_TLS is “yes”. Set 1 to enable it, or 0."),
        (
            "DATABASE_URL",
            "postgresql://me:secret@db/board?ssl_mode=require",
            "DATABASE_URL has the unknown option “ssl_mode”. Set sqlite:///path, or postgresql://"
            "user:password@host:port/name?option=value with %40 for @, %2F for / and %23 for # in "
            "names and passwords.",
        ),
    ],
)
def test_a_wrong_setting_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(name, value)
    code, _, err = ended(listing(tmp_path, value if name == "DATABASE_URL" else ""))
    assert (code, err) == (2, f"{why}\n")


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A database that lacks migrations; what is run meanwhile."""
    ran: list[str] = []
    monkeypatch.setattr(run_command, "is_migration_missing", lambda: True)
    monkeypatch.setattr(run_command, "call_command", lambda name, **_: ran.append(name))
    monkeypatch.setattr(
        run_command, "execute_from_command_line", lambda arguments: ran.append(arguments[1])
    )
    return ran


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_ours_begins_with_the_tables(
    missing: list[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    tables: list[str] = []
    monkeypatch.setattr(connection, "vendor", "sqlite")
    monkeypatch.setattr(connection.introspection, "table_names", lambda: tables)
    assert run_command.run_command(["manage.py", name]) == 0
    # These migrate any database themselves, before they read it.
    is_migrating = name in ("restore", "run")
    assert missing == ([name] if is_migrating else ["migrate", name])
    tables.append("theirs")
    missing.clear()
    assert run_command.run_command(["manage.py", name]) == (0 if is_migrating else 2)
    assert missing == ([name] if is_migrating else [])


def test_help_and_the_commands_of_others_need_no_tables(missing: list[str]) -> None:
    for arguments in (["worker", "--help"], ["check"], ["migrate"], ["no-such-command"]):
        assert run_command.run_command(["manage.py", *arguments]) == 0
    assert missing == ["worker", "check", "migrate", "no-such-command"]
