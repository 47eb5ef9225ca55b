"""The exact percentiles of a delay are in the Parquet of a nightly run alone."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("analytics", "0001_initial")]

    operations = [migrations.DeleteModel("AccuracyRow")]
