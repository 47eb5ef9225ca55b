from typing import Any

from django.db import migrations, models


def mark_adopted(apps: Any, schema_editor: Any) -> None:
    """Only what was adopted has the tap type “none”."""
    apps.get_model("topology", "Topology").objects.filter(tap_type="none").update(is_adopted=True)


class Migration(migrations.Migration):
    dependencies = [
        ("topology", "0004_keep_bodies"),
    ]

    operations = [
        migrations.AddField(
            model_name="topology",
            name="is_adopted",
            field=models.BooleanField(default=False, editable=False),
        ),
        migrations.RunPython(mark_adopted, migrations.RunPython.noop),
    ]
