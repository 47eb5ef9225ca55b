from django.db import migrations

from delayboard.migrations._search_index import SEARCH_INDEX


class Migration(migrations.Migration):
    dependencies = [
        ("delayboard", "0003_dead_letters"),
    ]

    operations = [
        migrations.RunPython(SEARCH_INDEX.make, SEARCH_INDEX.drop),
    ]
