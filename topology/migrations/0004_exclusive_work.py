from typing import Any

from django.conf import settings
from django.db import migrations, models


def keep_the_oldest(apps: Any, schema_editor: Any) -> None:
    """Of two workers that began at once, each made a row for alerts; the second was not used."""
    rows = apps.get_model("topology", "Work").objects.filter(kind="alerts")
    oldest = rows.order_by("pk").values_list("pk", flat=True).first()
    rows.exclude(pk=oldest).update(kind="alerts, unused", state="cancelled")


class Migration(migrations.Migration):
    dependencies = [
        ("topology", "0003_client_conventions"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RunPython(keep_the_oldest, migrations.RunPython.noop),
        migrations.RemoveField(model_name="topology", name="busy_until_at"),
        migrations.AddConstraint(
            model_name="work",
            constraint=models.UniqueConstraint(
                condition=models.Q(("kind__in", ("alerts", "nightly", "changing"))),
                fields=("kind", "subject"),
                name="one_exclusive_work_each",
            ),
        ),
    ]
