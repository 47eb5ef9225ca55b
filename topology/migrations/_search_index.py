"""The trigram index of a table's column `text`, which Django's models do not express."""

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
    """The statements that create the index `name`, for RunPython; `key` is the table's id."""

    name: str
    table: str
    key: str
    more_postgresql: tuple[str, ...] = ()

    @property
    def sqlite(self) -> tuple[str, ...]:
        """The triggers keep it in step, so that whatever deletes a row cleans the index up too."""
        return (
            f"""CREATE VIRTUAL TABLE {self.name} USING fts5(
                text, content='{self.table}', content_rowid='{self.key}',
                tokenize='trigram case_sensitive 1', detail='none'
            )""",
            f"""CREATE TRIGGER {self.name}_added AFTER INSERT ON {self.table} BEGIN
                INSERT INTO {self.name} (rowid, text) VALUES (new.{self.key}, new.text);
            END""",  # noqa: S608
            f"""CREATE TRIGGER {self.name}_removed AFTER DELETE ON {self.table} BEGIN
                INSERT INTO {self.name} ({self.name}, rowid, text)
                VALUES ('delete', old.{self.key}, old.text);
            END""",  # noqa: S608
        )

    @property
    def postgresql(self) -> tuple[str, ...]:
        return (
            "CREATE EXTENSION IF NOT EXISTS pg_trgm",
            f"CREATE INDEX {self.name} ON {self.table} USING gin (text gin_trgm_ops)",
            *self.more_postgresql,
        )

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
        if schema_editor.connection.vendor == "sqlite":
            schema_editor.execute(f"DROP TRIGGER {self.name}_added")
            schema_editor.execute(f"DROP TRIGGER {self.name}_removed")
            schema_editor.execute(f"DROP TABLE {self.name}")
        else:
            schema_editor.execute(f"DROP INDEX {self.name}")
