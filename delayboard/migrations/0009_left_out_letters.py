from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("delayboard", "0008_replay_indexes"),
    ]

    operations = [
        migrations.AddField(
            model_name="letterchange",
            name="left_out",
            field=models.PositiveIntegerField(default=0),
        ),
    ]
