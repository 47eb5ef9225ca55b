import django.db.models.deletion
from django.db import migrations, models

from analytics.migrations._search_index import SEARCH_INDEX

WAITING = models.Q(entered_at__isnull=False, left_at=None)


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
        migrations.RunPython(SEARCH_INDEX.make, SEARCH_INDEX.drop),
    ]
