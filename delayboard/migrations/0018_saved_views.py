"""Saved searches become saved views: of a person, or shared with a broker's people as before.

The table keeps its name and each new column may be empty, so that the version before goes on: its
rows are shared views.
"""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("delayboard", "0017_token_minute"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RenameModel("SavedSearch", "SavedView"),
                migrations.AlterModelTable("savedview", "delayboard_savedsearch"),
                migrations.AlterModelOptions("savedview", {"ordering": ("name",)}),
            ]
        ),
        migrations.AddField(
            "savedview",
            "owner",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="saved_views",
                to=settings.AUTH_USER_MODEL,
            ),
        ),
        migrations.AddField(
            "savedview",
            "display",
            models.CharField(blank=True, db_default="", default="", max_length=500),
        ),
        migrations.AlterField(
            "savedview",
            "broker",
            models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.CASCADE, to="topology.broker"
            ),
        ),
        migrations.AlterField(
            "savedview",
            "searched",
            models.CharField(
                choices=[
                    ("parked_messages", "Parked messages"),
                    ("scheduled", "Scheduled"),
                    ("findings", "Findings"),
                    ("retrying", "Retrying"),
                    ("dead_letters", "Dead letters"),
                    ("replays", "Replays"),
                ],
                default="parked_messages",
                max_length=20,
            ),
        ),
        migrations.RemoveConstraint("savedview", "one_search_per_name"),
        migrations.AddConstraint(
            "savedview",
            models.UniqueConstraint(
                condition=models.Q(("owner", None)),
                fields=("broker", "searched", "name"),
                name="one_shared_view_per_name",
            ),
        ),
        migrations.AddConstraint(
            "savedview",
            models.UniqueConstraint(
                fields=("owner", "broker", "searched", "name"), name="one_own_view_per_name"
            ),
        ),
        migrations.AddConstraint(
            "savedview",
            models.UniqueConstraint(
                condition=models.Q(("broker", None)),
                fields=("owner", "searched", "name"),
                name="one_own_view_of_all_brokers",
            ),
        ),
    ]
