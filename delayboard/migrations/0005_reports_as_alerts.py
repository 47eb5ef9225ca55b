"""Who gets nightly reports is a receiver of alerts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import migrations, models
from django.utils import timezone


def move_subscribers(apps: Any, schema_editor: Any) -> None:
    """A receiver with the name of a subscriber has its address: names are made of addresses.

    Nobody gets a report again, but for those after one that still waited to be sent.
    """
    deliveries = apps.get_model("analytics", "Delivery").objects
    receivers = apps.get_model("delayboard", "AlertReceiver").objects
    for one in apps.get_model("analytics", "Subscriber").objects.all():
        waiting = deliveries.filter(subscriber=one, sent_at=None).exclude(next_at=None)
        first = waiting.order_by("report__made_at").values_list("report__made_at", flat=True)[:1]
        reports_from = first[0] - timedelta(microseconds=1) if first else timezone.now()
        known = receivers.filter(channel=one.channel, name=one.name)
        if one.channel == "email" and known.update(reports_from=reports_from):
            continue
        receivers.create(
            channel=one.channel,
            name=one.name,
            encrypted_address=one.encrypted_address,
            sends_alerts=False,
            reports_from=reports_from,
        )


class Migration(migrations.Migration):
    dependencies = [
        ("analytics", "0005_lease_of_work"),
        ("delayboard", "0004_publish_from_file"),
    ]

    operations = [
        migrations.AddField("alertreceiver", "sends_alerts", models.BooleanField(default=True)),
        migrations.AddField(
            "alertreceiver",
            "reports_from",
            models.DateTimeField(
                null=True, help_text="Nightly reports that are made later are sent; none if empty."
            ),
        ),
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
