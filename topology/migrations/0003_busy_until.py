from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("topology", "0002_tap_type"),
    ]

    operations = [
        migrations.AddField(
            model_name="topology",
            name="busy_until_at",
            field=models.DateTimeField(editable=False, null=True),
        ),
    ]
