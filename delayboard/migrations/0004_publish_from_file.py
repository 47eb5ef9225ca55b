"""Timeouts are published from a file by a publish job, which keeps what became of its lines."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delayboard", "0003_pause_work"), ("topology", "0001_initial")]

    operations = [
        migrations.DeleteModel("ImportedTimeout"),
        migrations.AddField(
            "publishjob", "file_digest", models.CharField(blank=True, default="", max_length=64)
        ),
        migrations.AddField(
            "publishjob", "file_name", models.CharField(blank=True, default="", max_length=255)
        ),
        migrations.AddField("publishjob", "not_published", models.JSONField(default=list)),
        migrations.AddConstraint(
            "publishjob",
            models.UniqueConstraint(
                condition=~models.Q(file_digest=""),
                fields=("topology", "file_digest"),
                name="one_job_per_file",
            ),
        ),
    ]
