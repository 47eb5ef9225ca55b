import django.db.models.deletion
from django.db import NotSupportedError, OperationalError, ProgrammingError, migrations, models

WAITING = models.Q(entered_at__isnull=False, left_at=None)

# Kept in step by triggers, so that whatever deletes a message cleans the index up too.
SQLITE = (
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
)
SQLITE_BACK = (
    "DROP TRIGGER analytics_text_added",
    "DROP TRIGGER analytics_text_removed",
    "DROP TABLE analytics_textindex",
)
POSTGRESQL = (
    "CREATE EXTENSION IF NOT EXISTS pg_trgm",
    """
    CREATE INDEX analytics_textindex ON analytics_scheduledtext USING gin (text gin_trgm_ops)
    """,
)
POSTGRESQL_BACK = ("DROP INDEX analytics_textindex",)

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
        ("analytics", "0003_what_waits"),
    ]

    operations = [
        migrations.CreateModel(
            name="ScheduledText",
            fields=[
                (
                    "message",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="searched",
                        serialize=False,
                        to="analytics.scheduledmessage",
                    ),
                ),
                ("text", models.TextField()),
                ("check_at", models.DateTimeField(db_index=True)),
            ],
        ),
        migrations.CreateModel(
            name="TextPosition",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("read_to", models.BigIntegerField(default=0)),
            ],
        ),
        migrations.AddIndex(
            model_name="scheduledmessage",
            index=models.Index(
                condition=WAITING, fields=["topology", "due_at", "id"], name="scheduled_in_topology"
            ),
        ),
        migrations.AddIndex(
            model_name="scheduledmessage",
            index=models.Index(
                condition=WAITING,
                fields=["destination", "due_at", "id"],
                name="scheduled_for_destination",
            ),
        ),
        migrations.RunPython(make_index, drop_index),
    ]
