from __future__ import annotations

from topology.migrations._search_index import SearchIndex

SEARCH_INDEX = SearchIndex(
    "delayboard_parkedindex",
    "delayboard_parkedtext",
    "parked_message_id",
    # Compared by their bytes, as SQLite does: the beginning of a text can then be looked for in an
    # index, in whatever language the database sorts.
    (
        """ALTER TABLE delayboard_parkedfield
            ALTER COLUMN name TYPE varchar(255) COLLATE "C",
            ALTER COLUMN text TYPE varchar(255) COLLATE "C" """,
        '''ALTER TABLE delayboard_parkedtext
            ALTER COLUMN message_id TYPE varchar(255) COLLATE "C"''',
    ),
)
