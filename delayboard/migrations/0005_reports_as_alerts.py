"""Who gets nightly reports is a receiver of alerts."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models


def move_subscribers(apps: Any, schema_editor: Any) -> None:
    """A receiver with the name of a subscriber has its address: names are made of addresses."""
    receivers = apps.get_model("delayboard", "AlertReceiver").objects
    for one in apps.get_model("analytics", "Subscriber").objects.all():
        known = receivers.filter(channel=one.channel, name=one.name)
        if one.channel == "email" and known.update(sends_reports=True):
            continue
        receivers.create(
            channel=one.channel,
            name=one.name,
            encrypted_address=one.encrypted_address,
            sends_alerts=False,
            sends_reports=True,
        )


class Migration(migrations.Migration):
    dependencies = [
        ("analytics", "0005_lease_of_work"),
        ("delayboard", "0004_publish_from_file"),
    ]

    operations = [
        migrations.AddField("alertreceiver", "sends_alerts", models.BooleanField(default=True)),
        migrations.AddField("alertreceiver", "sends_reports", models.BooleanField(default=False)),
        migrations.AddField(
            "alertmessage",
            "report",
            models.ForeignKey("analytics.nightlyreport", models.CASCADE, null=True),
        ),
        migrations.AddConstraint(
            "alertmessage",
            models.UniqueConstraint(fields=("receiver", "report"), name="one_message_of_each"),
        ),
        migrations.RunPython(move_subscribers, migrations.RunPython.noop, elidable=True),
    ]
