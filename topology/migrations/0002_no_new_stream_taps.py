"""A topology that does not exist in its broker gets the tap that does no harm there."""

from typing import Any

from django.db import migrations


def forget_chosen_streams(apps: Any, schema_editor: Any) -> None:
    """The recorder replaces those that exist."""
    rows = apps.get_model("topology", "Topology").objects.filter(tap_type="stream")
    rows.filter(state__in=("planned", "deleted")).update(tap_type="")


class Migration(migrations.Migration):
    dependencies = [("topology", "0001_initial")]

    operations = [
        migrations.RunPython(forget_chosen_streams, migrations.RunPython.noop, elidable=True)
    ]
