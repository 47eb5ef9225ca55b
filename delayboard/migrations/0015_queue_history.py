import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("topology", "0010_queue_type_of_rings"),
        ("delayboard", "0014_acknowledged_error"),
    ]

    operations = [
        migrations.CreateModel(
            name="QueueSample",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("queue", models.TextField()),
                ("at", models.DateTimeField()),
                ("messages", models.PositiveBigIntegerField(null=True)),
                ("publish_rate", models.FloatField(null=True)),
                ("deliver_rate", models.FloatField(null=True)),
                ("ack_rate", models.FloatField(null=True)),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="topology.broker"
                    ),
                ),
            ],
            options={
                "ordering": ("-at", "-pk"),
                "indexes": [
                    models.Index(fields=["broker", "queue", "at"], name="samples_of_queue"),
                    models.Index(fields=["at"], name="samples_by_age"),
                ],
            },
        ),
    ]
