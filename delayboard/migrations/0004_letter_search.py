from django.db import NotSupportedError, OperationalError, ProgrammingError, migrations

# Kept in step by triggers, so that whatever deletes a letter cleans the index up too.
SQLITE = (
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
)
SQLITE_BACK = (
    "DROP TRIGGER delayboard_letter_added",
    "DROP TRIGGER delayboard_letter_removed",
    "DROP TABLE delayboard_letterindex",
)
# Compared by their bytes, as SQLite does: the beginning of a text can then be looked for in an
# index, in whatever language the database sorts.
POSTGRESQL = (
    "CREATE EXTENSION IF NOT EXISTS pg_trgm",
    "CREATE INDEX delayboard_letterindex ON delayboard_lettertext USING gin (text gin_trgm_ops)",
    """ALTER TABLE delayboard_letterfield
        ALTER COLUMN name TYPE varchar(255) COLLATE "C",
        ALTER COLUMN text TYPE varchar(255) COLLATE "C" """,
    '''ALTER TABLE delayboard_lettertext
        ALTER COLUMN message_id TYPE varchar(255) COLLATE "C"''',
)
POSTGRESQL_BACK = ("DROP INDEX delayboard_letterindex",)

SQLITE_IS_OLD = "The search needs an SQLite with FTS5 and its trigram tokenizer (3.34 or newer): %s"
MAY_NOT_EXTEND = (
    "The search needs the PostgreSQL extension pg_trgm. Let Delayboard's account create it (it is "
    "trusted from PostgreSQL 13 on: GRANT CREATE ON DATABASE suffices), or run CREATE EXTENSION "
    "pg_trgm in this database as an administrator, then migrate again: %s"
)


def make_index(apps, schema_editor):
    is_sqlite = schema_editor.connection.vendor == "sqlite"
    try:
        for statement in SQLITE if is_sqlite else POSTGRESQL:
            schema_editor.execute(statement)
    except (OperationalError, ProgrammingError, NotSupportedError) as error:
        sentence = SQLITE_IS_OLD if is_sqlite else MAY_NOT_EXTEND
        raise NotSupportedError(sentence % error) from error


def drop_index(apps, schema_editor):
    is_sqlite = schema_editor.connection.vendor == "sqlite"
    for statement in SQLITE_BACK if is_sqlite else POSTGRESQL_BACK:
        schema_editor.execute(statement)


class Migration(migrations.Migration):
    dependencies = [
        ("delayboard", "0003_dead_letters"),
    ]

    operations = [
        migrations.RunPython(make_index, drop_index),
    ]
