from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("delayboard", "0013_approvals_and_severity"),
    ]

    operations = [
        migrations.AddField(
            model_name="acknowledgement",
            name="error_kind",
            field=models.CharField(blank=True, db_default="", default="", max_length=16),
        ),
    ]
