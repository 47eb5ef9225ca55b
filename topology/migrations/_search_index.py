"""The search index of a text column, which Django's models do not express."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import NotSupportedError, OperationalError, ProgrammingError

SQLITE_IS_OLD = "The search needs an SQLite with FTS5 and its trigram tokenizer (3.34 or newer): %s"
MAY_NOT_EXTEND = (
    "The search needs the PostgreSQL extension pg_trgm. Let Delayboard's account create it (it is "
    "trusted from PostgreSQL 13 on: GRANT CREATE ON DATABASE suffices), or run CREATE EXTENSION "
    "pg_trgm in this database as an administrator, then migrate again: %s"
)


@dataclass(frozen=True)
class SearchIndex:
    """The statements that make an index and drop it, for each database; for RunPython."""

    sqlite: tuple[str, ...]
    sqlite_back: tuple[str, ...]
    postgresql: tuple[str, ...]
    postgresql_back: tuple[str, ...]

    def make(self, apps: Any, schema_editor: Any) -> None:
        """Raises NotSupportedError, with what to do, where the database has no such index."""
        is_sqlite = schema_editor.connection.vendor == "sqlite"
        try:
            for statement in self.sqlite if is_sqlite else self.postgresql:
                schema_editor.execute(statement)
        except (OperationalError, ProgrammingError, NotSupportedError) as error:
            sentence = SQLITE_IS_OLD if is_sqlite else MAY_NOT_EXTEND
            raise NotSupportedError(sentence % error) from error

    def drop(self, apps: Any, schema_editor: Any) -> None:
        is_sqlite = schema_editor.connection.vendor == "sqlite"
        for statement in self.sqlite_back if is_sqlite else self.postgresql_back:
            schema_editor.execute(statement)
