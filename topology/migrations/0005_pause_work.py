from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("topology", "0004_exclusive_work")]

    operations = [
        migrations.AddField("work", "pause_requested", models.BooleanField(default=False)),
    ]
