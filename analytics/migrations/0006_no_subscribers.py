"""Who gets nightly reports is a receiver of alerts."""

from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("analytics", "0005_lease_of_work"),
        ("delayboard", "0005_reports_as_alerts"),
    ]

    operations = [migrations.DeleteModel("Delivery"), migrations.DeleteModel("Subscriber")]
