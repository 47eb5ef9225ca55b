"""What falls due is counted in the rows: no counts beside them, and indexes that cover it."""

from django.db import migrations, models

WAITING = models.Q(("entered_at__isnull", False), ("left_at", None))
INDEXES = {
    "scheduled_waiting": ["due_at", "id", "topology", "destination"],
    "scheduled_in_topology": ["topology", "due_at", "id", "destination"],
    "scheduled_for_destination": ["destination", "due_at", "id", "topology"],
}


class Migration(migrations.Migration):
    dependencies = [("analytics", "0002_no_exact_delays")]

    operations = [
        migrations.DeleteModel("DueCount"),
        *(
            operation
            for name, fields in INDEXES.items()
            for operation in (
                migrations.RemoveIndex("scheduledmessage", name),
                migrations.AddIndex(
                    "scheduledmessage", models.Index(condition=WAITING, fields=fields, name=name)
                ),
            )
        ),
    ]
