import django.db.models.deletion
from django.db import migrations, models

from analytics.migrations._search_index import SEARCH_INDEX


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("topology", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="AccuracyRow",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.DateField(db_index=True)),
                ("broker", models.CharField(max_length=100)),
                ("topology", models.CharField(blank=True, default="", max_length=300)),
                ("queue", models.CharField(blank=True, default="", max_length=255)),
                ("requested_delay", models.DurationField()),
                ("measured", models.PositiveBigIntegerField()),
                ("taken", models.PositiveBigIntegerField(default=0)),
                ("p50_ms", models.FloatField(null=True)),
                ("p90_ms", models.FloatField(null=True)),
                ("p95_ms", models.FloatField(null=True)),
                ("p99_ms", models.FloatField(null=True)),
                ("max_ms", models.FloatField(null=True)),
                ("early_share", models.FloatField(null=True)),
                ("uncounted", models.PositiveBigIntegerField()),
                ("open", models.PositiveBigIntegerField()),
                ("missing", models.PositiveBigIntegerField()),
            ],
            options={
                "ordering": ("day", "broker", "topology", "id"),
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="Fact",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("line", models.TextField(help_text="The event as a line of the log.")),
            ],
            options={
                "ordering": ("id",),
            },
        ),
        migrations.CreateModel(
            name="LogPosition",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("path", models.CharField(max_length=300, unique=True)),
                ("bytes_read", models.BigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name="Run",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.DateField(unique=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("requested", "waiting for the worker"),
                            ("running", "running"),
                            ("done", "done"),
                            ("no_data", "no data"),
                            ("failed", "failed"),
                        ],
                        default="requested",
                        max_length=10,
                    ),
                ),
                ("owner", models.CharField(blank=True, max_length=32)),
                ("lease_until", models.DateTimeField(null=True)),
                ("steps_done", models.PositiveIntegerField(default=0)),
                ("steps", models.PositiveIntegerField(default=0)),
                ("started_at", models.DateTimeField(null=True)),
                ("finished_at", models.DateTimeField(null=True)),
                ("lines", models.PositiveBigIntegerField(default=0)),
                ("malformed", models.PositiveBigIntegerField(default=0)),
                ("excluded", models.JSONField(default=dict)),
                ("step_seconds", models.JSONField(default=list)),
                ("peak_memory_bytes", models.PositiveBigIntegerField(null=True)),
                ("spark_version", models.CharField(blank=True, max_length=40)),
                ("output", models.TextField(blank=True)),
                ("error", models.TextField(blank=True)),
                ("code_version", models.CharField(blank=True, max_length=40)),
            ],
            options={
                "ordering": ("-day",),
            },
        ),
        migrations.CreateModel(
            name="ScheduledMessage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key", models.CharField(max_length=255)),
                ("message_id", models.CharField(blank=True, max_length=255)),
                ("content_id", models.CharField(max_length=32)),
                ("tracking_id", models.CharField(blank=True, max_length=100)),
                ("attempt", models.PositiveIntegerField()),
                ("requested_delay", models.DurationField()),
                ("entered_at", models.DateTimeField(null=True)),
                ("due_at", models.DateTimeField(null=True)),
                ("left_at", models.DateTimeField(null=True)),
                ("destination", models.CharField(blank=True, max_length=255)),
                ("queue", models.CharField(blank=True, max_length=255)),
                ("size", models.PositiveBigIntegerField(default=0, help_text="Bytes of the body.")),
                ("caught_up", models.BooleanField(default=True)),
                ("source", models.CharField(blank=True, default="tap", max_length=20)),
                ("correlation_id", models.CharField(blank=True, default="", max_length=255)),
                ("exchange", models.CharField(blank=True, default="", max_length=255)),
                ("routing_key", models.CharField(blank=True, default="", max_length=255)),
                ("published_at", models.DateTimeField(null=True)),
                ("published_at_source", models.CharField(blank=True, default="", max_length=40)),
                ("published_by", models.CharField(blank=True, default="", max_length=255)),
                ("content_type", models.CharField(blank=True, default="", max_length=255)),
                ("headers_json", models.TextField(default="{}")),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="topology.broker",
                    ),
                ),
                (
                    "topology",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="topology.topology",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="TextPosition",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("read_to", models.BigIntegerField(default=0)),
            ],
        ),
        migrations.CreateModel(
            name="UnexplainedMessage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.DateField(db_index=True)),
                ("broker", models.CharField(max_length=100)),
                ("topology", models.CharField(blank=True, default="", max_length=300)),
                ("message", models.CharField(max_length=255)),
                ("due_at", models.DateTimeField()),
            ],
            options={
                "ordering": ("day", "broker", "topology", "id"),
                "abstract": False,
            },
        ),
        migrations.CreateModel(
            name="DayFigures",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.DateField(db_index=True)),
                ("broker", models.CharField(max_length=100)),
                ("topology", models.CharField(blank=True, default="", max_length=300)),
                ("pattern", models.CharField(blank=True, default="", max_length=40)),
                ("destination", models.CharField(blank=True, default="", max_length=255)),
                ("measured", models.PositiveBigIntegerField(default=0)),
                ("p99_ms", models.FloatField(null=True)),
                ("messages", models.PositiveBigIntegerField(default=0)),
                ("retried", models.PositiveBigIntegerField(default=0)),
                ("exhausted", models.PositiveBigIntegerField(default=0)),
                ("entered", models.PositiveBigIntegerField(default=0)),
                ("unexplained", models.PositiveBigIntegerField(default=0)),
                (
                    "figures",
                    models.TextField(help_text="JSON, read by a faster parser than Django's."),
                ),
            ],
            options={
                "ordering": ("day", "broker", "topology", "id"),
                "abstract": False,
                "indexes": [
                    models.Index(
                        fields=["topology", "pattern", "destination", "day"], name="by_cut"
                    ),
                    models.Index(
                        fields=[
                            "destination",
                            "pattern",
                            "day",
                            "broker",
                            "topology",
                            "p99_ms",
                            "measured",
                            "messages",
                            "retried",
                            "exhausted",
                            "entered",
                            "unexplained",
                        ],
                        name="topologies_by_day",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="Firehose",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("switched_on_at", models.DateTimeField(auto_now_add=True)),
                ("switched_on_by", models.CharField(max_length=150)),
                ("read_at", models.DateTimeField(null=True)),
                ("lost_since", models.DateTimeField(null=True)),
                (
                    "broker",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="firehose",
                        to="topology.broker",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Gap",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("from_at", models.DateTimeField()),
                ("until_at", models.DateTimeField()),
                (
                    "at_most",
                    models.PositiveIntegerField(
                        help_text="Lost copies; unknown if empty.", null=True
                    ),
                ),
                ("why", models.TextField()),
                (
                    "topology",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="topology.topology",
                    ),
                ),
            ],
            options={
                "ordering": ("-until_at",),
            },
        ),
        migrations.CreateModel(
            name="Recording",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("read_at", models.DateTimeField()),
                ("lost_since", models.DateTimeField(null=True)),
                ("stream", models.CharField(blank=True, default="", max_length=12)),
                ("offset", models.BigIntegerField(default=-1)),
                ("mark", models.CharField(blank=True, default="", max_length=32)),
                (
                    "topology",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="topology.topology",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ScheduledBody",
            fields=[
                (
                    "message",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="kept_body",
                        serialize=False,
                        to="analytics.scheduledmessage",
                    ),
                ),
                ("body", models.BinaryField()),
                ("properties", models.BinaryField(default=b"")),
            ],
        ),
        migrations.CreateModel(
            name="ScheduledText",
            fields=[
                (
                    "message",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="searched",
                        serialize=False,
                        to="analytics.scheduledmessage",
                    ),
                ),
                ("text", models.TextField()),
                ("check_at", models.DateTimeField(db_index=True)),
            ],
        ),
        migrations.CreateModel(
            name="Probe",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("message_id", models.CharField(max_length=64, unique=True)),
                ("delay", models.DurationField()),
                ("created_at", models.DateTimeField()),
                ("sent_at", models.DateTimeField(null=True)),
                ("overdue_at", models.DateTimeField(null=True)),
                ("arrived_at", models.DateTimeField(null=True)),
                ("abandoned_at", models.DateTimeField(null=True)),
                ("is_in_time", models.BooleanField(default=True)),
                (
                    "topology",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="probes",
                        to="topology.topology",
                    ),
                ),
            ],
            options={
                "ordering": ("pk",),
                "indexes": [
                    models.Index(fields=["topology", "created_at"], name="probe_of_topology")
                ],
            },
        ),
        migrations.CreateModel(
            name="Slo",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "percent",
                    models.FloatField(help_text="Share of measured deliveries, in percent."),
                ),
                (
                    "within_ms",
                    models.PositiveIntegerField(
                        choices=[
                            (10, "10ms"),
                            (100, "100ms"),
                            (500, "500ms"),
                            (1000, "1s"),
                            (2000, "2s"),
                            (5000, "5s"),
                            (10000, "10s"),
                            (100000, "1m 40s"),
                        ],
                        default=1000,
                    ),
                ),
                (
                    "topology",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="slo",
                        to="topology.topology",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="DueCount",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("destination", models.CharField(blank=True, max_length=255)),
                ("width", models.PositiveIntegerField()),
                ("due_at", models.DateTimeField()),
                ("waiting", models.IntegerField()),
                (
                    "topology",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="topology.topology",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topology", "width", "due_at", "destination"),
                        name="one_count_per_time",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Minute",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("minute_at", models.DateTimeField()),
                ("entered", models.PositiveIntegerField(default=0)),
                ("left", models.PositiveIntegerField(default=0)),
                ("died", models.PositiveIntegerField(default=0)),
                ("late", models.PositiveIntegerField(default=0)),
                ("lateness_json", models.TextField(blank=True, default="{}")),
                (
                    "topology",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="topology.topology",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topology", "minute_at"), name="one_row_per_minute"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="ConsumptionPeak",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("queue", models.CharField(max_length=255)),
                ("day_at", models.DateTimeField()),
                ("messages", models.PositiveIntegerField()),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to="topology.broker",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("broker", "queue", "day_at"), name="one_peak_per_day"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="NightlyReport",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.DateField(unique=True)),
                ("made_at", models.DateTimeField()),
                ("html", models.TextField()),
                ("pdf", models.BinaryField(null=True)),
                ("pdf_error", models.TextField(blank=True)),
            ],
            options={
                "ordering": ("-day",),
            },
        ),
        migrations.CreateModel(
            name="Subscriber",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "channel",
                    models.CharField(
                        choices=[("email", "E-mail"), ("webhook", "Webhook")], max_length=10
                    ),
                ),
                ("encrypted_address", models.TextField()),
                ("name", models.CharField(max_length=254)),
            ],
            options={
                "ordering": ("channel", "name", "id"),
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("next_at", models.DateTimeField(null=True)),
                ("sent_at", models.DateTimeField(null=True)),
                ("error", models.TextField(blank=True)),
                (
                    "report",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="analytics.nightlyreport",
                    ),
                ),
                (
                    "subscriber",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="deliveries",
                        to="analytics.subscriber",
                    ),
                ),
            ],
            options={
                "ordering": ("-report__day", "subscriber"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("report", "subscriber"), name="one_delivery_of_each"
                    )
                ],
            },
        ),
        migrations.AddIndex(
            model_name="scheduledmessage",
            index=models.Index(fields=["topology", "key", "attempt"], name="scheduled_trip"),
        ),
        migrations.AddIndex(
            model_name="scheduledmessage",
            index=models.Index(
                condition=models.Q(("entered_at__isnull", False), ("left_at", None)),
                fields=["due_at", "id"],
                name="scheduled_waiting",
            ),
        ),
        migrations.AddIndex(
            model_name="scheduledmessage",
            index=models.Index(
                condition=models.Q(("entered_at__isnull", False), ("left_at", None)),
                fields=["topology", "due_at", "id"],
                name="scheduled_in_topology",
            ),
        ),
        migrations.AddIndex(
            model_name="scheduledmessage",
            index=models.Index(
                condition=models.Q(("entered_at__isnull", False), ("left_at", None)),
                fields=["destination", "due_at", "id"],
                name="scheduled_for_destination",
            ),
        ),
        migrations.AddIndex(
            model_name="scheduledmessage",
            index=models.Index(
                condition=models.Q(("tracking_id", ""), _negated=True),
                fields=["tracking_id"],
                name="scheduled_tracked",
            ),
        ),
        migrations.RunPython(SEARCH_INDEX.make, SEARCH_INDEX.drop),
    ]
