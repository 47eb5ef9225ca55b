"""The search index of the texts of parked messages."""

from __future__ import annotations

from topology.migrations._search_index import SearchIndex

SEARCH_INDEX = SearchIndex(
    # Kept in step by triggers, so that whatever deletes a letter cleans the index up too.
    sqlite=(
        """
        CREATE VIRTUAL TABLE delayboard_letterindex USING fts5(
            text, content='delayboard_lettertext', content_rowid='letter_id',
            tokenize='trigram case_sensitive 1', detail='none'
        )
        """,
        """
        CREATE TRIGGER delayboard_letter_added AFTER INSERT ON delayboard_lettertext BEGIN
            INSERT INTO delayboard_letterindex (rowid, text) VALUES (new.letter_id, new.text);
        END
        """,
        """
        CREATE TRIGGER delayboard_letter_removed AFTER DELETE ON delayboard_lettertext BEGIN
            INSERT INTO delayboard_letterindex (delayboard_letterindex, rowid, text)
            VALUES ('delete', old.letter_id, old.text);
        END
        """,
    ),
    sqlite_back=(
        "DROP TRIGGER delayboard_letter_added",
        "DROP TRIGGER delayboard_letter_removed",
        "DROP TABLE delayboard_letterindex",
    ),
    # Compared by their bytes, as SQLite does: the beginning of a text can then be looked for in an
    # index, in whatever language the database sorts.
    postgresql=(
        "CREATE EXTENSION IF NOT EXISTS pg_trgm",
        "CREATE INDEX delayboard_letterindex ON delayboard_lettertext USING gin (text gin_trgm_ops)",
        """ALTER TABLE delayboard_letterfield
            ALTER COLUMN name TYPE varchar(255) COLLATE "C",
            ALTER COLUMN text TYPE varchar(255) COLLATE "C" """,
        '''ALTER TABLE delayboard_lettertext
            ALTER COLUMN message_id TYPE varchar(255) COLLATE "C"''',
    ),
    postgresql_back=("DROP INDEX delayboard_letterindex",),
)
