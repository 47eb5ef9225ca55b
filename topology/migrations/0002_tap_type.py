from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("topology", "0001_initial"),
    ]

    operations = [
        # What was applied before this release has a classic tap.
        migrations.AddField(
            model_name="topology",
            name="tap_type",
            field=models.CharField(blank=True, default="classic", editable=False, max_length=10),
        ),
        migrations.AlterField(
            model_name="topology",
            name="tap_type",
            field=models.CharField(blank=True, default="", editable=False, max_length=10),
        ),
    ]
