"""All tables of a PostgreSQL database as files, by COPY in one snapshot.

pg_dump must not be older than the server and is not on every machine; COPY needs nothing, and the
migrations make the tables.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.management.color import no_style
from django.db import connection, transaction

# The migrations write it.
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


def load_tables(folder: Path, columns: Mapping[str, Sequence[str]]) -> None:
    """Replace the rows of all tables by these, in one transaction."""
    quote = connection.ops.quote_name
    with transaction.atomic(), connection.cursor() as cursor:
        # What an app had that this version has no longer.
        there = columns.keys() & set(connection.introspection.table_names(cursor))
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
        for statement in connection.ops.sequence_reset_sql(
            no_style(), apps.get_models(include_auto_created=True)
        ):
            cursor.execute(statement)


def drop_tables() -> None:
    quote = connection.ops.quote_name
    with transaction.atomic(), connection.cursor() as cursor:
        if names := connection.introspection.table_names(cursor):
            cursor.execute(f"DROP TABLE {', '.join(map(quote, names))} CASCADE")


def _named(table: str, columns: Sequence[str]) -> str:
    quote = connection.ops.quote_name
    return f"{quote(table)} ({', '.join(map(quote, columns))})"


def _driver(cursor: Any) -> Any:
    """The driver's own cursor, which has COPY."""
    return cursor.cursor
