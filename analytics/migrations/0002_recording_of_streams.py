from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("analytics", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="recording",
            name="mark",
            field=models.CharField(blank=True, default="", max_length=32),
        ),
        migrations.AddField(
            model_name="recording",
            name="offset",
            field=models.BigIntegerField(default=-1),
        ),
        migrations.AddField(
            model_name="recording",
            name="stream",
            field=models.CharField(blank=True, default="", max_length=12),
        ),
    ]
