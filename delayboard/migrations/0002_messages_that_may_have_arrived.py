from typing import Any

from django.db import migrations, models


def call_nacked_unknown(apps: Any, schema_editor: Any) -> None:
    """A nack proves nothing, so what was nacked may have arrived."""
    items = apps.get_model("delayboard", "ReplayItem").objects
    items.using(schema_editor.connection.alias).filter(state="nacked").update(state="unknown")


class Migration(migrations.Migration):
    dependencies = (("delayboard", "0001_initial"),)

    operations = (
        migrations.RenameField("replaybatch", "nacked", "unknown"),
        migrations.AlterField(
            "replaybatch",
            "unknown",
            models.PositiveIntegerField(
                default=0, help_text="Number of messages that may have arrived."
            ),
        ),
        migrations.RunPython(call_nacked_unknown, migrations.RunPython.noop),
        migrations.AlterField(
            "replayitem",
            "state",
            models.CharField(
                choices=(
                    ("pending", "pending"),
                    ("publishing", "publishing"),
                    ("done", "done"),
                    ("returned", "returned (unroutable)"),
                    ("failed", "failed"),
                    ("unknown", "may have arrived"),
                    ("cancelled", "cancelled"),
                    ("excluded", "excluded (possible repeat)"),
                ),
                default="pending",
                max_length=10,
            ),
        ),
        migrations.RemoveIndex("replayitem", "items_to_follow"),
        migrations.AddIndex(
            "replayitem",
            models.Index(
                condition=models.Q(state__in=("done", "unknown"), outcome__in=("", "delayed")),
                fields=("batch", "position"),
                name="items_to_follow",
            ),
        ),
        migrations.AddField("publishjob", "unknown", models.PositiveIntegerField(default=0)),
    )
