from __future__ import annotations

from django.db import migrations

# Patterns that got the parameter `queue_type`; before, their queues were classic.
KINDS = ("busy_wait", "delay_queues", "retry_ladder", "retry_pair")


def complete(apps, schema_editor):
    """Stored parameters are compared as they are: a second topology with the same is refused."""
    for row in apps.get_model("topology", "Topology").objects.filter(kind__in=KINDS):
        if "queue_type" not in row.params:
            row.params = {**row.params, "queue_type": "classic"}
            row.save(update_fields=["params"])


class Migration(migrations.Migration):
    dependencies = [("topology", "0009_broker_approval")]
    operations = [migrations.RunPython(complete, migrations.RunPython.noop)]
