"""Runs a command of manage.py; Delayboard's own commands on a migrated database.

An empty database file of our own gets its tables. Any other database is not changed, and the
command explains how to migrate it.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import django
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command, execute_from_command_line, get_commands
from django.db import Error, connection
from django.db.migrations.executor import MigrationExecutor

from topology.management.input_file import is_file

OURS = frozenset({"topology", "analytics", "delayboard"})
# Accounts, their sessions and their unlocking: these are needed first on a new installation.
ACCOUNTS = frozenset({"django.contrib.auth", "django.contrib.sessions", "axes"})
# It migrates any database itself.
MIGRATING = "run"
MIGRATE_FIRST = "The database is not migrated. Run manage.py migrate first."


class NotReady(Exception):
    """The message says why the command cannot run, and what to do."""


def run_command(arguments: Sequence[str]) -> int:
    """The exit code. Raises SystemExit as Django's commands do."""
    if not all(map(is_text, arguments)):
        sys.stderr.write("The command was not run. An argument is not valid UTF-8.\n")
        return 2
    try:
        try:
            return _run(arguments)
        finally:
            # Little output is written here, and not when Python ends.
            sys.stdout.flush()
    except ImproperlyConfigured as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except BrokenPipeError:
        # Whoever reads the output, such as head, has enough. What is left of it must go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def is_text(argument: str) -> bool:
    """Tell whether it can be encoded: a database takes no other, and neither does an output."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _run(arguments: Sequence[str]) -> int:
    if not needs_database(arguments):
        execute_from_command_line(list(arguments))
        return 0
    from topology.database.errors import explain

    try:
        prepare_database()
        execute_from_command_line(list(arguments))
    except NotReady as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except (Error, OSError) as error:
        trouble = explain(error)
        if trouble is None:
            raise
        sys.stderr.write(f"{trouble}\n")
        return 1
    return 0


def needs_database(arguments: Sequence[str]) -> bool:
    """Whether it is one of our commands, or one for accounts, which need the tables."""
    name = arguments[1] if len(arguments) > 1 else ""
    if name == MIGRATING or {"-h", "--help"} & set(arguments) or checks_file(arguments):
        return False
    django.setup()
    return get_commands().get(name) in OURS | ACCOUNTS


def checks_file(arguments: Sequence[str]) -> bool:
    """Whether it is `lint` with a file, which must start fast and without a database."""
    given = [one for one in arguments[2:] if one == "-" or not one.startswith("-")]
    return arguments[1:2] == ["lint"] and bool(given) and is_file(given[0])


def prepare_database() -> None:
    """Create the tables in an empty file of ours. Raises NotReady, and db.Error."""
    if connection.vendor != "sqlite":
        if is_migration_missing():
            raise NotReady(MIGRATE_FIRST)
        return
    # SQLite may refuse a look at a file in which another process creates the tables.
    with one_at_a_time():
        if not is_migration_missing():
            return
        if connection.introspection.table_names():
            raise NotReady(MIGRATE_FIRST)
        call_command("migrate", interactive=False, verbosity=0)


def is_migration_missing() -> bool:
    """Whether this version has migrations that the database does not have."""
    executor = MigrationExecutor(connection)
    plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
    connection.close()
    return bool(plan)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold a lock file: the site and the worker are started together."""
    with (settings.VAR / "migrate.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
