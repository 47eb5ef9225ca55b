from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("analytics", "0004_streams_have_no_name")]

    operations = [
        migrations.RemoveField(model_name="run", name="lease_until"),
        migrations.RemoveField(model_name="run", name="owner"),
    ]
