import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Broker",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("slug", models.SlugField(editable=False, max_length=60, unique=True)),
                ("name", models.CharField(max_length=100)),
                ("environment", models.CharField(default="development", max_length=30)),
                (
                    "colour",
                    models.CharField(
                        choices=[
                            ("slate", "Slate"),
                            ("green", "Green"),
                            ("amber", "Amber"),
                            ("red", "Red"),
                            ("violet", "Violet"),
                            ("blue", "Blue"),
                        ],
                        default="slate",
                        max_length=10,
                    ),
                ),
                ("is_production", models.BooleanField(default=False)),
                ("host", models.CharField(max_length=255)),
                ("port", models.PositiveIntegerField(default=5672)),
                ("vhost", models.CharField(default="/", max_length=255)),
                ("management_url", models.CharField(max_length=500)),
                ("username", models.CharField(max_length=255)),
                ("sealed_password", models.TextField(blank=True, editable=False)),
                ("tls", models.BooleanField(default=False)),
                ("verify_tls", models.BooleanField(default=True)),
                ("ca_certificate", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("findings_checked_at", models.DateTimeField(editable=False, null=True)),
            ],
            options={
                "ordering": ("name", "pk"),
            },
        ),
        migrations.CreateModel(
            name="AuditEntry",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField(auto_now_add=True, db_index=True)),
                ("username", models.CharField(max_length=150)),
                ("action", models.CharField(max_length=60)),
                ("broker_name", models.CharField(blank=True, max_length=100)),
                ("what", models.CharField(blank=True, max_length=500)),
                ("outcome", models.CharField(default="done", max_length=500)),
                ("details", models.JSONField(default=dict)),
                (
                    "user",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "broker",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to="topology.broker",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "audit entries",
                "ordering": ("-at", "-pk"),
            },
        ),
        migrations.CreateModel(
            name="RedactionRule",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[("header", "header"), ("body", "value in a JSON body")],
                        max_length=10,
                    ),
                ),
                ("pattern", models.CharField(max_length=255)),
                (
                    "least_role",
                    models.PositiveSmallIntegerField(
                        choices=[(1, "Viewer"), (2, "Operator"), (3, "Admin")], default=3
                    ),
                ),
                (
                    "broker",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        to="topology.broker",
                    ),
                ),
            ],
            options={
                "ordering": ("kind", "pattern"),
            },
        ),
        migrations.CreateModel(
            name="Topology",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("slug", models.SlugField(editable=False, max_length=80, unique=True)),
                ("kind", models.CharField(max_length=40)),
                ("name", models.CharField(max_length=255)),
                ("params", models.JSONField()),
                ("owned", models.JSONField(default=list)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("planned", "planned"),
                            ("applying", "being applied"),
                            ("applied", "applied"),
                            ("deleted", "deleted"),
                        ],
                        default="planned",
                        max_length=10,
                    ),
                ),
                (
                    "tap_type",
                    models.CharField(blank=True, default="", editable=False, max_length=10),
                ),
                (
                    "tap_name",
                    models.CharField(blank=True, default="", editable=False, max_length=120),
                ),
                (
                    "retired_tap",
                    models.CharField(blank=True, default="", editable=False, max_length=120),
                ),
                ("busy_until_at", models.DateTimeField(editable=False, null=True)),
                (
                    "probing",
                    models.CharField(
                        blank=True,
                        choices=[("", "disabled"), ("on", "enabled"), ("ending", "being disabled")],
                        default="",
                        editable=False,
                        max_length=10,
                    ),
                ),
                ("probe_minutes", models.PositiveSmallIntegerField(default=5, editable=False)),
                ("keep_bodies", models.BooleanField(default=False, editable=False)),
                ("is_adopted", models.BooleanField(default=False, editable=False)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("applied_at", models.DateTimeField(null=True)),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="topologies",
                        to="topology.broker",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "topologies",
                "ordering": ("name", "pk"),
            },
        ),
        migrations.CreateModel(
            name="Drift",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("since_at", models.DateTimeField()),
                ("objects_count", models.PositiveIntegerField()),
                ("missing", models.PositiveIntegerField()),
                ("changed", models.PositiveIntegerField()),
                (
                    "topology",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="drift",
                        to="topology.topology",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="FindingMute",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key", models.CharField(max_length=30)),
                ("reason", models.CharField(max_length=300)),
                ("until_at", models.DateTimeField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="finding_mutes",
                        to="topology.broker",
                    ),
                ),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("broker", "key"), name="one_mute_per_finding")
                ],
            },
        ),
        migrations.CreateModel(
            name="FindingPeriod",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key", models.CharField(max_length=30)),
                ("rule", models.CharField(max_length=10)),
                ("severity", models.PositiveSmallIntegerField()),
                ("title", models.TextField()),
                ("objects_count", models.PositiveIntegerField()),
                ("appeared_at", models.DateTimeField()),
                ("resolved_at", models.DateTimeField(db_index=True, null=True)),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="finding_periods",
                        to="topology.broker",
                    ),
                ),
            ],
            options={
                "ordering": ("-appeared_at", "-pk"),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("resolved_at", None)),
                        fields=("broker", "key"),
                        name="one_open_period_per_finding",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Grant",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "role",
                    models.PositiveSmallIntegerField(
                        choices=[(1, "Viewer"), (2, "Operator"), (3, "Admin")]
                    ),
                ),
                (
                    "broker",
                    models.ForeignKey(
                        blank=True,
                        help_text="Empty: every broker.",
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        to="topology.broker",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="grants",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("user", "broker"), name="one_grant_per_broker"),
                    models.UniqueConstraint(
                        condition=models.Q(("broker", None)),
                        fields=("user",),
                        name="one_grant_for_all",
                    ),
                ],
            },
        ),
        migrations.CreateModel(
            name="MissingBinding",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("destination", models.CharField(blank=True, max_length=255)),
                ("since_at", models.DateTimeField()),
                ("from_at", models.DateTimeField(null=True)),
                ("restored_at", models.DateTimeField(null=True)),
                ("stuck", models.PositiveBigIntegerField(default=0)),
                ("waiting", models.PositiveBigIntegerField(default=0)),
                ("is_bound", models.BooleanField(default=False)),
                ("is_dropped", models.BooleanField(default=False)),
                (
                    "topology",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="missing_bindings",
                        to="topology.topology",
                    ),
                ),
            ],
            options={
                "ordering": ("-stuck", "-waiting", "destination"),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("topology", "destination"), name="one_row_per_missing_binding"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Work",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("kind", models.CharField(max_length=30)),
                ("subject", models.BigIntegerField(help_text="The row that the work is about.")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "waiting"),
                            ("running", "running"),
                            ("done", "done"),
                            ("failed", "failed"),
                            ("cancelled", "cancelled"),
                        ],
                        default="waiting",
                        max_length=10,
                    ),
                ),
                ("cancel_requested", models.BooleanField(default=False)),
                ("fence", models.PositiveIntegerField(default=0)),
                ("owner", models.CharField(blank=True, max_length=100)),
                ("leased_until_at", models.DateTimeField(null=True)),
                ("not_before_at", models.DateTimeField(null=True)),
                ("attempts", models.PositiveIntegerField(default=0)),
                ("done", models.PositiveIntegerField(default=0)),
                ("total", models.PositiveIntegerField(default=0)),
                ("error", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "broker",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, to="topology.broker"
                    ),
                ),
                (
                    "created_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("-pk",),
                "indexes": [
                    models.Index(fields=["kind", "state"], name="topology_wo_kind_e131b1_idx")
                ],
            },
        ),
        migrations.CreateModel(
            name="QueueReport",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("rule", models.CharField(max_length=10)),
                ("queue", models.CharField(max_length=255)),
                ("number", models.PositiveBigIntegerField()),
                ("sentence", models.TextField()),
                ("until_at", models.DateTimeField()),
                ("is_peeked", models.BooleanField(default=False)),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="queue_reports",
                        to="topology.broker",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="QueueReplacement",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("queue", models.CharField(max_length=255)),
                (
                    "step",
                    models.CharField(
                        choices=[
                            ("rerouting", "switching a routing key to another queue"),
                            ("switching", "switching the bindings to the temporary queue"),
                            ("draining", "waiting until the old queue is empty"),
                            ("deleting", "deleting the old queue"),
                            ("returning", "switching the bindings to the new queue"),
                            ("settling", "waiting until the temporary queue is empty"),
                        ],
                        default="switching",
                        max_length=10,
                    ),
                ),
                ("reroute", models.JSONField(null=True)),
                ("waiting", models.PositiveIntegerField(null=True)),
                ("empty_since_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "topology",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="replacements",
                        to="topology.topology",
                    ),
                ),
                (
                    "work",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE, to="topology.work"
                    ),
                ),
            ],
            options={
                "ordering": ("pk",),
            },
        ),
    ]
