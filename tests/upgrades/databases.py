"""Databases beside the one of the tests: empty ones, and copies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from django.db import DEFAULT_DB_ALIAS, connection, connections
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader

Targets = list[tuple[str, str]]


def _create(copy_of: str | None = None) -> str:
    """Return the name of a new database."""
    if connection.vendor == "sqlite":
        name = str(Path(connection.settings_dict["NAME"]).with_suffix(f".{uuid4().hex}"))
        if copy_of is not None:
            shutil.copyfile(copy_of, name)
        return name
    name = f"test_{uuid4().hex}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} TEMPLATE {copy_of or 'template0'}")
    return name


def _drop(name: str) -> None:
    if connection.vendor == "sqlite":
        Path(name).unlink(missing_ok=True)
        return
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {name}")


@contextmanager
def using(name: str) -> Iterator[None]:
    """Make it the default database: migrations that convert rows use that one."""
    before = connections[DEFAULT_DB_ALIAS]
    other: Any = connections.create_connection(DEFAULT_DB_ALIAS)
    other.settings_dict = {**before.settings_dict, "NAME": name}
    connections[DEFAULT_DB_ALIAS] = other
    try:
        yield
    finally:
        other.close()
        connections[DEFAULT_DB_ALIAS] = before


@contextmanager
def new_database(copy_of: str | None = None) -> Iterator[str]:
    """Yield the name of a database, and drop it afterwards."""
    name = _create(copy_of)
    try:
        yield name
    finally:
        _drop(name)


def migrate_by_old(targets: Targets) -> Any:
    """Apply the migrations that the squashed ones replace; return the models of that state."""
    executor = MigrationExecutor(connection)
    executor.loader = MigrationLoader(connection, replace_migrations=False)
    executor.migrate(targets)
    return executor.loader.project_state(targets).apps
