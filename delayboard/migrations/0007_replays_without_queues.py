import uuid

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delayboard", "0006_convert_replays")]

    operations = [
        migrations.RemoveField(
            model_name="replayitem",
            name="content_id",
        ),
        migrations.RemoveField(
            model_name="replayitem",
            name="replay_id",
        ),
        migrations.RemoveField(
            model_name="replayitem",
            name="target_exchange",
        ),
        migrations.RemoveField(
            model_name="replayitem",
            name="target_key",
        ),
        migrations.RemoveField(
            model_name="replayitem",
            name="target_why",
        ),
        migrations.RemoveField(
            model_name="replayitem",
            name="verdict",
        ),
        migrations.RemoveField(
            model_name="replayitem",
            name="verdict_is_good",
        ),
        migrations.AlterField(
            model_name="replaybatch",
            name="uid",
            field=models.UUIDField(default=uuid.uuid4, editable=False, unique=True),
        ),
    ]
