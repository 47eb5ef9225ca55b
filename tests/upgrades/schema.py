"""What a database consists of, as far as two ways to make it could differ."""

from __future__ import annotations

import re
from collections.abc import Iterator

from django.db import connection

# What a model does not name has a hash of the operation that made it, or PostgreSQL's own ending.
GENERATED = re.compile(r"_[0-9a-f]{8}_uniq$|_key$|_[0-9a-f]{8}(?=_|$)")

SQLITE = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
POSTGRESQL = (
    """
    SELECT c.relname, concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod),
        a.attnotnull, a.attidentity, l.collname, pg_get_expr(d.adbin, d.adrelid))
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    LEFT JOIN pg_collation l ON l.oid = a.attcollation
    WHERE c.relkind IN ('r', 'S') AND a.attnum > 0 AND NOT a.attisdropped
    AND c.relnamespace = 'public'::regnamespace
    """,
    """
    SELECT conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
    FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    """,
    "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "SELECT extname, extversion FROM pg_extension",
    "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
)


def describe() -> set[tuple[str, str]]:
    """Return a line for each column, constraint, index and trigger of the default database."""
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute(SQLITE)
            return {line for name, sql in cursor.fetchall() for line in _parts(name, sql)}
        found = []
        for statement in POSTGRESQL:
            cursor.execute(statement)
            found += cursor.fetchall()
    return {(GENERATED.sub("", name), what.replace(name, "", 1)) for name, what in found}


def _parts(name: str, sql: str) -> Iterator[tuple[str, str]]:
    """Split what makes a table into its columns and constraints, whose order may differ."""
    if not sql.startswith("CREATE TABLE"):
        yield name, sql
        return
    depth, part = 0, ""
    for letter in sql[sql.index("(") + 1 : sql.rindex(")")]:
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            yield name, part.strip()
            part = ""
        else:
            part += letter
    yield name, part.strip()
    yield name, sql[sql.rindex(")") + 1 :]
