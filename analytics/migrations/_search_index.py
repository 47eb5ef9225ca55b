"""The search index of the texts of waiting messages."""

from __future__ import annotations

from topology.migrations._search_index import SearchIndex

SEARCH_INDEX = SearchIndex(
    # Kept in step by triggers, so that whatever deletes a message cleans the index up too.
    sqlite=(
        """
        CREATE VIRTUAL TABLE analytics_textindex USING fts5(
            text, content='analytics_scheduledtext', content_rowid='message_id',
            tokenize='trigram case_sensitive 1', detail='none'
        )
        """,
        """
        CREATE TRIGGER analytics_text_added AFTER INSERT ON analytics_scheduledtext BEGIN
            INSERT INTO analytics_textindex (rowid, text) VALUES (new.message_id, new.text);
        END
        """,
        """
        CREATE TRIGGER analytics_text_removed AFTER DELETE ON analytics_scheduledtext BEGIN
            INSERT INTO analytics_textindex (analytics_textindex, rowid, text)
            VALUES ('delete', old.message_id, old.text);
        END
        """,
    ),
    sqlite_back=(
        "DROP TRIGGER analytics_text_added",
        "DROP TRIGGER analytics_text_removed",
        "DROP TABLE analytics_textindex",
    ),
    postgresql=(
        "CREATE EXTENSION IF NOT EXISTS pg_trgm",
        """
        CREATE INDEX analytics_textindex ON analytics_scheduledtext USING gin (text gin_trgm_ops)
        """,
    ),
    postgresql_back=("DROP INDEX analytics_textindex",),
)
