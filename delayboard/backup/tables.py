"""All tables of a PostgreSQL database as files, by COPY in one snapshot.

pg_dump must not be older than the server and is not on every machine; COPY needs nothing, and the
migrations make the tables.
"""

from __future__ import annotations

import gzip
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.management.color import no_style
from django.db import connection, transaction
from django.db.migrations.loader import MigrationLoader

# Table that the migrations write, which a restore leaves to them.
OWN_TABLE = "django_migrations"
GZIP_LEVEL = 1


def dump_tables(folder: Path) -> dict[str, list[str]]:
    """Write each table to `folder`; the columns by table. Within a transaction of one snapshot."""
    found: dict[str, list[str]] = {}
    with connection.cursor() as cursor:
        for table in sorted(connection.introspection.table_names(cursor)):
            if table == OWN_TABLE:
                continue
            columns = connection.introspection.get_table_description(cursor, table)
            found[table] = [column.name for column in columns]
            statement = f"COPY {_named(table, found[table])} TO STDOUT"
            with (
                gzip.open(folder / f"{table}.gz", "wb", GZIP_LEVEL) as file,
                _driver(cursor).copy(statement) as rows,
            ):
                for piece in rows:
                    file.write(piece)
    return found


def load_tables(
    folder: Path, columns: Mapping[str, Sequence[str]], foreign: Collection[str]
) -> None:
    """Replace the rows of all tables but `foreign` by these, in one transaction."""
    quote = connection.ops.quote_name
    with transaction.atomic(), connection.cursor() as cursor:
        tables = set(connection.introspection.table_names(cursor))
        # What an app had that this version has no longer.
        there = columns.keys() & tables - set(foreign)
        cursor.execute(f"TRUNCATE {', '.join(map(quote, there))} CASCADE")
        for table, names in columns.items():
            if table not in there:
                continue
            statement = f"COPY {_named(table, names)} FROM STDIN"
            with (
                gzip.open(folder / f"{table}.gz", "rb") as file,
                _driver(cursor).copy(statement) as rows,
            ):
                while piece := file.read(1024 * 1024):
                    rows.write(piece)
        # A later version has models whose tables are not made yet.
        models = [
            model
            for model in apps.get_models(include_auto_created=True)
            if model._meta.db_table in tables
        ]
        for statement in connection.ops.sequence_reset_sql(no_style(), models):
            cursor.execute(statement)


def drop_tables() -> list[str]:
    """Drop what the migrations made, of this version or the one that is there; which others stay.

    Without CASCADE: what others built on a table of ours is not dropped, and ours stay too.
    """
    quote = connection.ops.quote_name
    loader = MigrationLoader(connection)
    applied = [node for node in loader.applied_migrations or () if node in loader.graph.nodes]
    ours = {OWN_TABLE}
    for registry in (apps, loader.project_state(applied).apps):
        models = registry.get_models(include_auto_created=True)
        ours |= {model._meta.db_table for model in models}
    with transaction.atomic(), connection.cursor() as cursor:
        there = connection.introspection.table_names(cursor)
        if names := [name for name in there if name in ours]:
            cursor.execute(f"DROP TABLE {', '.join(map(quote, names))}")
    return [name for name in there if name not in ours]


def _named(table: str, columns: Sequence[str]) -> str:
    quote = connection.ops.quote_name
    return f"{quote(table)} ({', '.join(map(quote, columns))})"


def _driver(cursor: Any) -> Any:
    """The driver's own cursor, which has COPY."""
    return cursor.cursor
