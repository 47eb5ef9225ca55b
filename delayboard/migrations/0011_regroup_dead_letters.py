from django.db import migrations

from delayboard.dead_letters.regroup import regroup


def run(apps, schema_editor):
    """Groups have placeholders for ids, and a part of the exception's message, since this version."""
    regroup(apps)


class Migration(migrations.Migration):
    dependencies = [
        ("delayboard", "0010_exception_messages_of_groups"),
        ("topology", "0001_initial"),
    ]

    operations = [migrations.RunPython(run, migrations.RunPython.noop)]
