"""Interceptions of several bindings, counters and envelopes of a replay; no moved queues."""

from typing import Any

from django.db import migrations, models


def join_bindings(apps: Any, schema_editor: Any) -> None:
    """An interception of before replaced one binding."""
    for row in apps.get_model("delayboard", "Interception").objects.all():
        row.bindings = [[row.routing_key, row.arguments]]
        row.save(update_fields=["bindings"])


def cancel_moves(apps: Any, schema_editor: Any) -> None:
    """A move that was not over goes no further: its messages are in their queue."""
    batches = apps.get_model("delayboard", "ReplayBatch").objects.filter(source="queue")
    batches.exclude(state__in=("done", "cancelled", "failed")).update(state="cancelled")


class Migration(migrations.Migration):
    dependencies = [("delayboard", "0001_initial")]

    operations = [
        migrations.AddField("interception", "bindings", models.JSONField(default=list)),
        migrations.RunPython(join_bindings, migrations.RunPython.noop, elidable=True),
        migrations.AlterField("interception", "bindings", models.JSONField()),
        migrations.RemoveField("interception", "routing_key"),
        migrations.RemoveField("interception", "arguments"),
        migrations.RunPython(cancel_moves, migrations.RunPython.noop, elidable=True),
        migrations.RemoveField("replaybatch", "source"),
        migrations.RemoveField("replaybatch", "queue"),
        migrations.RemoveField("replaybatch", "in_flight"),
        migrations.AddField("replaybatch", "keep_counters", models.BooleanField(default=False)),
        migrations.AddField("replaybatch", "unwraps", models.BooleanField(default=False)),
    ]
