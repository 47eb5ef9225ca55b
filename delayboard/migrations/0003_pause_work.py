from typing import Any

from django.db import migrations
from django.db.models import Q


def pause(apps: Any, schema_editor: Any) -> None:
    batches = apps.get_model("delayboard", "ReplayBatch").objects
    batches.filter(pause_requested=True, work__state="waiting").update(state="paused")
    rows = apps.get_model("topology", "Work").objects
    requested = Q(replaybatch__pause_requested=True) | Q(delaymigration__is_paused=True)
    rows.filter(requested).update(pause_requested=True)
    # The work of a paused replay waited for the year 9000.
    rows.filter(replaybatch__state="paused").update(pause_requested=True, not_before_at=None)


class Migration(migrations.Migration):
    dependencies = [
        ("topology", "0005_pause_work"),
        ("delayboard", "0002_bindings_and_counters"),
    ]

    operations = [
        migrations.RunPython(pause, migrations.RunPython.noop),
        migrations.RemoveField("replaybatch", "pause_requested"),
        migrations.RemoveField("delaymigration", "is_paused"),
    ]
