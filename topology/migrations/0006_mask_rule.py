import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("topology", "0005_adopted"),
    ]

    operations = [
        migrations.CreateModel(
            name="MaskRule",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[("header", "header"), ("body", "value in a JSON body")],
                        max_length=10,
                    ),
                ),
                ("pattern", models.CharField(max_length=255)),
                (
                    "least_role",
                    models.PositiveSmallIntegerField(
                        choices=[(1, "Viewer"), (2, "Operator"), (3, "Admin")], default=3
                    ),
                ),
                (
                    "broker",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        to="topology.broker",
                    ),
                ),
            ],
            options={
                "ordering": ("kind", "pattern"),
            },
        ),
    ]
