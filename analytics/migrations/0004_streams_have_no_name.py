"""Of a stream tap only the position is kept, to read the rest of it once."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("analytics", "0003_count_rows")]

    operations = [
        migrations.RemoveField("recording", "stream"),
        migrations.RemoveField("recording", "mark"),
    ]
