"""Runs a command of manage.py; Delayboard's own commands on a migrated database.

An empty database file of our own gets its tables. Any other database is not changed, and the
command explains how to migrate it.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pkgutil import iter_modules

import django
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command, execute_from_command_line, get_commands
from django.core.management.base import CommandError
from django.db import Error, connection
from django.db.migrations.recorder import MigrationRecorder

from delayboard import log_context
from topology.content.text import visible
from topology.management.exit_codes import BadInput, ExitCode
from topology.management.input_file import is_file

OURS = frozenset({"topology", "analytics", "delayboard"})
# Apps whose commands (accounts, sessions, unlocking) a new installation needs first.
ACCOUNTS = frozenset({"django.contrib.auth", "django.contrib.sessions", "axes"})
# Commands that migrate the database themselves.
MIGRATING = frozenset({"run", "restore"})
# Commands that take a file of definitions, or a broker.
FOR_FILES = frozenset({"lint", "recognize"})
MIGRATE_FIRST = "The database is not migrated. Run manage.py migrate first."


def run_command(arguments: Sequence[str]) -> int:
    """The exit code. Raises SystemExit as Django's commands do.

    What keeps a command from its work becomes one sentence and an exit code here, and nowhere else.
    """
    try:
        try:
            _run(arguments)
        finally:
            # Little output is written here, and not when Python ends.
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads the output, such as head, has enough. What is left of it must go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.NO
    except KeyboardInterrupt:
        return _fail(arguments, "The command was stopped.", ExitCode.STOPPED)
    except CommandError as error:
        if "--traceback" in arguments:
            raise
        return _fail(arguments, str(error), error.returncode)
    except ImproperlyConfigured as error:
        return _fail(arguments, str(error), ExitCode.NOT_RUN)
    except (Error, OSError) as error:
        from topology.database.errors import explain

        if (trouble := explain(error)) is None:
            raise
        return _fail(arguments, str(trouble), ExitCode.NOT_RUN)
    return ExitCode.DONE


def _fail(arguments: Sequence[str], sentence: str, code: int) -> int:
    """Print why it failed, for programs as JSON too; returns the code."""
    for line in sentence.splitlines():
        sys.stderr.write(f"{visible(line)}\n")
    if prints_json(arguments):
        sys.stdout.write(json.dumps({"error": sentence}, ensure_ascii=False) + "\n")
    return code


def prints_json(arguments: Sequence[str]) -> bool:
    """Whether the command writes JSON, by `--json`, which argparse allows to cut, or as `lint`."""
    is_cut = any(len(one) > len("--") and "--json".startswith(one) for one in arguments)
    return is_cut or "--format=json" in arguments or ("--format", "json") in pairwise(arguments)


def is_text(argument: str) -> bool:
    """Tell whether it can be encoded: a database takes no other, and neither does an output."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True


def _run(arguments: Sequence[str]) -> None:
    log_context.begin(command=" ".join(arguments[1:2]))
    # Python's own warnings are lines of text too.
    logging.captureWarnings(settings.LOG_FORMAT == "json")
    if not all(map(is_text, arguments)):
        raise BadInput("The command was not run. An argument is not valid UTF-8.")
    if needs_database(arguments):
        prepare_database()
    execute_from_command_line(list(arguments))


def needs_database(arguments: Sequence[str]) -> bool:
    """Whether it is one of our commands, or one for accounts, which need the tables."""
    name = arguments[1] if len(arguments) > 1 else ""
    if name in MIGRATING or {"-h", "--help"} & set(arguments) or checks_file(arguments):
        return False
    if any(one.partition("=")[0] == "--server" for one in arguments):
        return False
    django.setup()
    return get_commands().get(name) in OURS | ACCOUNTS


def checks_file(arguments: Sequence[str]) -> bool:
    """Whether it examines a file, which must start fast and without a database."""
    given = [one for one in arguments[2:] if one == "-" or not one.startswith("-")]
    return {*arguments[1:2]} <= FOR_FILES and bool(given) and is_file(given[0])


def prepare_database() -> None:
    """Create the tables in an empty file of ours. Raises BadInput, and db.Error."""
    with closing(connection):
        if connection.vendor != "sqlite":
            if is_migration_missing():
                raise BadInput(MIGRATE_FIRST)
            return
        # SQLite may refuse a look at a file in which another process creates the tables.
        with one_at_a_time():
            if not is_migration_missing():
                return
            if connection.introspection.table_names():
                raise BadInput(MIGRATE_FIRST)
            call_command("migrate", interactive=False, verbosity=0)


def is_migration_missing() -> bool:
    """Whether this version has migrations that the database does not have."""
    # The names of files tell most often, and to load the migrations takes long.
    if _migration_names() <= set(MigrationRecorder(connection).applied_migrations()):
        return False
    from django.db.migrations.executor import MigrationExecutor

    executor = MigrationExecutor(connection)
    return bool(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def _migration_names() -> set[tuple[str, str]]:
    return {
        (config.label, module.name)
        for config in apps.get_app_configs()
        for module in iter_modules([f"{config.path}/migrations"])
        if not module.name.startswith("_")
    }


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold a lock file: the site and the worker are started together.

    Before the migrations there is no table that could hold a lease.
    """
    with (settings.VAR / "migrate.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
