import datetime
import uuid

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from delayboard.migrations._search_index import SEARCH_INDEX


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ("analytics", "0001_initial"),
        ("topology", "0001_initial"),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name="Body",
            fields=[
                ("sha256", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("size", models.PositiveIntegerField()),
                ("data", models.BinaryField()),
            ],
            options={
                "verbose_name_plural": "bodies",
            },
        ),
        migrations.CreateModel(
            name="ParkedMessage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("queue", models.CharField(max_length=255)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("parked", "parked"),
                            ("discarded", "discarded"),
                            ("replaying", "in a replay"),
                            ("delayed", "sent to a delay"),
                            ("replayed", "replayed"),
                        ],
                        default="parked",
                        max_length=10,
                    ),
                ),
                ("exchange", models.CharField(blank=True, max_length=255)),
                ("routing_key", models.CharField(blank=True, max_length=255)),
                ("properties", models.BinaryField()),
                ("size", models.PositiveIntegerField(help_text="Size of the body in bytes.")),
                ("redelivered", models.BooleanField()),
                ("content_id", models.CharField(max_length=32)),
                ("message_id", models.CharField(blank=True, max_length=255)),
                (
                    "deaths",
                    models.PositiveIntegerField(help_text="Number of deaths in all rounds."),
                ),
                (
                    "died_at",
                    models.DateTimeField(
                        help_text="Time of the first failure, if recorded.", null=True
                    ),
                ),
                ("parked_at", models.DateTimeField()),
                ("imported_uid", models.CharField(blank=True, max_length=64)),
                ("state_at", models.DateTimeField(help_text="Time of the last state change.")),
                (
                    "body",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, to="delayboard.body"
                    ),
                ),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, to="topology.broker"
                    ),
                ),
            ],
            options={
                "ordering": ("-pk",),
            },
        ),
        migrations.CreateModel(
            name="ParkedPosition",
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
            name="BackgroundTask",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key", models.CharField(max_length=100, unique=True)),
                ("name", models.CharField(max_length=200)),
                ("started_at", models.DateTimeField(null=True)),
                ("beat_at", models.DateTimeField(null=True)),
                ("last_error", models.TextField(blank=True)),
                ("last_error_at", models.DateTimeField(null=True)),
                ("details", models.JSONField(default=dict)),
                (
                    "broker",
                    models.ForeignKey(
                        null=True, on_delete=django.db.models.deletion.CASCADE, to="topology.broker"
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "background tasks",
                "ordering": ("key",),
            },
        ),
        migrations.CreateModel(
            name="DeadLetterQueue",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("queue", models.CharField(max_length=255)),
                (
                    "is_confirmed",
                    models.BooleanField(help_text="False: a user excluded the queue."),
                ),
                ("decided_at", models.DateTimeField()),
                ("parks_automatically", models.BooleanField(default=False)),
                ("watched_at", models.DateTimeField(null=True)),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="topology.broker"
                    ),
                ),
                (
                    "decided_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "watched_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("queue",),
            },
        ),
        migrations.CreateModel(
            name="DelayMigration",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("is_paused", models.BooleanField(default=False)),
                ("takes_undated", models.BooleanField(default=False)),
                ("moved", models.PositiveIntegerField(default=0)),
                ("malformed", models.PositiveIntegerField(default=0)),
                ("doubled", models.PositiveIntegerField(default=0)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "requested_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "source",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="topology.topology",
                    ),
                ),
                (
                    "target",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="topology.topology",
                    ),
                ),
                (
                    "work",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT, to="topology.work"
                    ),
                ),
            ],
            options={
                "ordering": ("-pk",),
            },
        ),
        migrations.CreateModel(
            name="ImportedTimeout",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key", models.CharField(max_length=64)),
                ("destination", models.CharField(max_length=255)),
                ("due_at", models.DateTimeField()),
                ("tracking_id", models.UUIDField(default=uuid.uuid4, editable=False)),
                ("may_be_doubled", models.BooleanField(default=False)),
                ("begun_at", models.DateTimeField(auto_now_add=True)),
                ("published_at", models.DateTimeField(null=True)),
                (
                    "topology",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="imported_timeouts",
                        to="topology.topology",
                    ),
                ),
            ],
            options={
                "ordering": ("pk",),
            },
        ),
        migrations.CreateModel(
            name="Interception",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=60, unique=True)),
                ("source", models.CharField(max_length=255)),
                ("queue", models.CharField(max_length=255)),
                ("routing_key", models.CharField(blank=True, max_length=255)),
                ("arguments", models.JSONField(default=dict)),
                ("queue_type", models.CharField(max_length=10)),
                ("limit", models.DurationField(default=datetime.timedelta(seconds=600))),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "not started"),
                            ("beginning", "beginning"),
                            ("open", "intercepting"),
                            ("ending", "ending"),
                            ("closed", "closed"),
                        ],
                        default="waiting",
                        max_length=10,
                    ),
                ),
                ("passed", models.PositiveIntegerField(default=0)),
                ("taken", models.PositiveIntegerField(default=0)),
                ("overtaken", models.PositiveIntegerField(default=0)),
                ("bound_again_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, to="topology.broker"
                    ),
                ),
                (
                    "work",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.PROTECT, to="topology.work"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="MessageGroup",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "fingerprint",
                    models.CharField(help_text="Hash of the common cause.", max_length=32),
                ),
                ("died_in", models.CharField(blank=True, max_length=255)),
                ("reason", models.CharField(blank=True, max_length=255)),
                ("exchange", models.CharField(blank=True, max_length=255)),
                ("routing_key", models.CharField(blank=True, max_length=255)),
                ("exception", models.CharField(blank=True, max_length=255)),
                ("message_type", models.CharField(blank=True, max_length=255)),
                ("exception_message", models.CharField(blank=True, max_length=255)),
                ("parked_from", models.CharField(blank=True, max_length=255)),
                ("parked", models.PositiveIntegerField(default=0)),
                ("discarded", models.PositiveIntegerField(default=0)),
                ("replaying", models.PositiveIntegerField(default=0)),
                ("delayed", models.PositiveIntegerField(default=0)),
                ("replayed", models.PositiveIntegerField(default=0)),
                (
                    "total",
                    models.PositiveIntegerField(
                        default=0, help_text="Number of messages ever parked."
                    ),
                ),
                (
                    "first_at",
                    models.DateTimeField(
                        help_text="Time of the first death, or of the first parking."
                    ),
                ),
                ("last_at", models.DateTimeField()),
                ("note", models.TextField(blank=True)),
                ("link", models.URLField(blank=True, max_length=500)),
                (
                    "name",
                    models.CharField(
                        blank=True, help_text="Name from a merge of groups.", max_length=100
                    ),
                ),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="topology.broker"
                    ),
                ),
                (
                    "merged_into",
                    models.ForeignKey(
                        blank=True,
                        help_text="Group that shows these messages; each message keeps its own group.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="merged",
                        to="delayboard.messagegroup",
                    ),
                ),
                (
                    "owner",
                    models.ForeignKey(
                        blank=True,
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("-last_at", "-pk"),
            },
        ),
        migrations.CreateModel(
            name="FailureQueue",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("queue", models.CharField(max_length=255)),
                ("seen_at", models.DateTimeField()),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="topology.broker"
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(fields=("broker", "queue"), name="one_failure_queue")
                ],
            },
        ),
        migrations.CreateModel(
            name="GroupHour",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("hour", models.DateTimeField()),
                ("died", models.PositiveIntegerField(default=0)),
                (
                    "group",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="hours",
                        to="delayboard.messagegroup",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="MovedMessage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("key", models.CharField(max_length=300)),
                ("queue", models.CharField(max_length=255)),
                (
                    "migration",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="begun",
                        to="delayboard.delaymigration",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ParkedChange",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("to_state", models.CharField(max_length=10)),
                ("query", models.CharField(blank=True, max_length=500)),
                ("newest", models.BigIntegerField()),
                ("position", models.BigIntegerField(default=0)),
                ("requested", models.PositiveIntegerField(null=True)),
                ("changed", models.PositiveIntegerField(default=0)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, to="topology.broker"
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
                (
                    "group",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        to="delayboard.messagegroup",
                    ),
                ),
                (
                    "work",
                    models.OneToOneField(
                        null=True, on_delete=django.db.models.deletion.PROTECT, to="topology.work"
                    ),
                ),
            ],
            options={
                "ordering": ("-pk",),
            },
        ),
        migrations.CreateModel(
            name="ParkedText",
            fields=[
                (
                    "parked_message",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="searched",
                        serialize=False,
                        to="delayboard.parkedmessage",
                    ),
                ),
                ("text", models.TextField()),
                (
                    "message_id",
                    models.CharField(
                        blank=True,
                        help_text="Message id in lower case (case folded).",
                        max_length=255,
                    ),
                ),
                ("size", models.PositiveIntegerField()),
                ("deaths", models.PositiveIntegerField()),
                ("died_at", models.DateTimeField(null=True)),
                ("parked_at", models.DateTimeField()),
            ],
        ),
        migrations.AddField(
            model_name="parkedmessage",
            name="group",
            field=models.ForeignKey(
                on_delete=django.db.models.deletion.PROTECT,
                related_name="parked_messages",
                to="delayboard.messagegroup",
            ),
        ),
        migrations.AddField(
            model_name="parkedmessage",
            name="repeat_of",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                to="delayboard.parkedmessage",
            ),
        ),
        migrations.AddField(
            model_name="parkedmessage",
            name="state_by",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, to=settings.AUTH_USER_MODEL
            ),
        ),
        migrations.CreateModel(
            name="ParkedField",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=255)),
                ("text", models.CharField(max_length=255)),
                ("number", models.FloatField(null=True)),
                (
                    "parked_message",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="fields",
                        to="delayboard.parkedmessage",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Parking",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("queue", models.CharField(max_length=255)),
                ("handles", models.JSONField(null=True)),
                ("requested", models.PositiveIntegerField(null=True)),
                ("parked", models.PositiveIntegerField(default=0)),
                ("repeats", models.PositiveIntegerField(default=0)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, to="topology.broker"
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
                (
                    "work",
                    models.OneToOneField(
                        null=True, on_delete=django.db.models.deletion.PROTECT, to="topology.work"
                    ),
                ),
            ],
            options={
                "ordering": ("-pk",),
            },
        ),
        migrations.CreateModel(
            name="ParkSession",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("queue", models.CharField(max_length=255)),
                ("began_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                ("stored_to", models.BigIntegerField(default=0)),
                ("acked_to", models.BigIntegerField(default=0)),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, to="topology.broker"
                    ),
                ),
                (
                    "parking",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        to="delayboard.parking",
                    ),
                ),
                (
                    "started_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
        migrations.AddField(
            model_name="parkedmessage",
            name="session",
            field=models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.PROTECT, to="delayboard.parksession"
            ),
        ),
        migrations.CreateModel(
            name="PeekCount",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("queue", models.CharField(max_length=255)),
                ("peeks", models.PositiveIntegerField(default=0)),
                ("last_at", models.DateTimeField()),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="topology.broker"
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Preference",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("time_zone", models.CharField(blank=True, default="", max_length=64)),
                (
                    "user",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="Publication",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("exchange", models.CharField(blank=True, max_length=255)),
                ("routing_key", models.CharField(blank=True, max_length=255)),
                ("message_id", models.CharField(blank=True, max_length=255)),
                ("size", models.PositiveIntegerField()),
                ("predicted_delay_ms", models.BigIntegerField(null=True)),
                ("prediction", models.TextField(blank=True)),
                ("hops", models.JSONField(default=list, help_text="As Prediction.hops")),
                ("unobservable_why", models.TextField(blank=True)),
                (
                    "sent",
                    models.CharField(
                        choices=[
                            ("sending", "sending"),
                            ("confirmed", "confirmed by the broker"),
                            ("refused", "not published"),
                            ("unknown", "possibly published"),
                        ],
                        default="sending",
                        max_length=10,
                    ),
                ),
                ("error", models.TextField(blank=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("confirmed_at", models.DateTimeField(null=True)),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="topology.broker"
                    ),
                ),
                (
                    "topology",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to="topology.topology",
                    ),
                ),
                (
                    "user",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "ordering": ("-created_at",),
            },
        ),
        migrations.CreateModel(
            name="CounterSample",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField()),
                ("numbers", models.JSONField()),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="topology.broker"
                    ),
                ),
            ],
            options={
                "ordering": ("-at",),
                "indexes": [models.Index(fields=["broker", "at"], name="counters_of_broker")],
            },
        ),
        migrations.CreateModel(
            name="QueueDepth",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("at", models.DateTimeField()),
                ("messages", models.PositiveIntegerField()),
                (
                    "queue",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="depths",
                        to="delayboard.deadletterqueue",
                    ),
                ),
            ],
            options={
                "ordering": ("-at",),
            },
        ),
        migrations.CreateModel(
            name="RedirectRule",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("exchange", models.CharField(blank=True, max_length=255)),
                ("routing_key", models.CharField(blank=True, max_length=255)),
                ("set_at", models.DateTimeField()),
                (
                    "group",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="redirect",
                        to="delayboard.messagegroup",
                    ),
                ),
                (
                    "set_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ReplayBatch",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("uid", models.UUIDField(default=uuid.uuid4, editable=False, unique=True)),
                (
                    "source",
                    models.CharField(
                        choices=[("parked", "parked messages"), ("queue", "queue (move)")],
                        default="parked",
                        max_length=10,
                    ),
                ),
                ("queue", models.CharField(blank=True, max_length=255)),
                ("description", models.TextField()),
                ("parked_messages", models.JSONField(null=True)),
                ("query", models.CharField(blank=True, max_length=500)),
                ("newest", models.BigIntegerField(null=True)),
                ("limit", models.PositiveIntegerField(null=True)),
                ("include_repeats", models.BooleanField(default=False)),
                ("prepared_to", models.BigIntegerField(default=0)),
                ("claimed_to", models.PositiveIntegerField(default=0)),
                (
                    "order",
                    models.CharField(
                        choices=[("oldest", "oldest first"), ("newest", "newest first")],
                        default="oldest",
                        max_length=10,
                    ),
                ),
                (
                    "mode",
                    models.CharField(
                        choices=[
                            ("default", "original exchange and routing key"),
                            ("first_queue", "queue of the first death"),
                            ("typed", "selected exchange and routing key"),
                            ("delay", "delay of a topology"),
                        ],
                        default="default",
                        max_length=12,
                    ),
                ),
                ("exchange", models.CharField(blank=True, max_length=255)),
                ("key", models.CharField(blank=True, max_length=255)),
                ("delay", models.DurationField(null=True)),
                (
                    "rate",
                    models.FloatField(
                        help_text="Messages per second; null means no limit.", null=True
                    ),
                ),
                (
                    "canary",
                    models.PositiveIntegerField(
                        default=0, help_text="Number of canary messages; 0 means no canary."
                    ),
                ),
                ("canary_seconds", models.PositiveIntegerField(default=0)),
                (
                    "canary_goes_on",
                    models.BooleanField(
                        default=False,
                        help_text="Resumes automatically if none is dead-lettered again.",
                    ),
                ),
                ("undo_seconds", models.PositiveIntegerField(default=0)),
                ("most_replays", models.PositiveIntegerField(default=3)),
                (
                    "stop_after",
                    models.PositiveIntegerField(
                        default=10,
                        help_text="Pauses at this number of messages dead-lettered again; 0 means no limit.",
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("preparing", "preparing"),
                            ("draft", "dry run"),
                            ("waiting", "waiting (undo possible)"),
                            ("running", "running"),
                            ("watching", "observing the canary"),
                            ("paused", "paused"),
                            ("done", "done"),
                            ("cancelled", "cancelled"),
                            ("failed", "failed"),
                        ],
                        db_index=True,
                        default="preparing",
                        max_length=10,
                    ),
                ),
                ("state_at", models.DateTimeField()),
                ("state_why", models.TextField(blank=True)),
                ("pause_requested", models.BooleanField(default=False)),
                (
                    "publish_at",
                    models.DateTimeField(help_text="Time of the first publish.", null=True),
                ),
                ("canary_until", models.DateTimeField(null=True)),
                ("selected", models.PositiveIntegerField(default=0)),
                ("done", models.PositiveIntegerField(default=0)),
                ("returned", models.PositiveIntegerField(default=0)),
                (
                    "unknown",
                    models.PositiveIntegerField(
                        default=0, help_text="Number of messages that may have arrived."
                    ),
                ),
                ("failed", models.PositiveIntegerField(default=0)),
                ("cancelled", models.PositiveIntegerField(default=0)),
                ("excluded", models.PositiveIntegerField(default=0)),
                ("repeats", models.PositiveIntegerField(default=0)),
                (
                    "doubled",
                    models.PositiveIntegerField(
                        default=0, help_text="Number of messages that may be duplicated."
                    ),
                ),
                ("delivered", models.PositiveIntegerField(default=0)),
                (
                    "died",
                    models.PositiveIntegerField(
                        default=0, help_text="Number of messages dead-lettered again."
                    ),
                ),
                (
                    "followed_to",
                    models.DateTimeField(
                        help_text="Outcomes are complete up to this time.", null=True
                    ),
                ),
                (
                    "in_flight",
                    models.PositiveIntegerField(
                        default=1000,
                        help_text="Move queue: maximum unconfirmed messages in the latest run.",
                    ),
                ),
                ("started_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="topology.broker"
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
                (
                    "group",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to="delayboard.messagegroup",
                    ),
                ),
                (
                    "parking",
                    models.OneToOneField(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        to="delayboard.parking",
                    ),
                ),
                (
                    "started_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "topology",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to="topology.topology",
                    ),
                ),
                (
                    "work",
                    models.OneToOneField(
                        null=True, on_delete=django.db.models.deletion.PROTECT, to="topology.work"
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "replay batches",
                "ordering": ("-pk",),
            },
        ),
        migrations.CreateModel(
            name="ReplayItem",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("position", models.PositiveIntegerField()),
                ("message_id", models.CharField(blank=True, max_length=255)),
                ("size", models.PositiveIntegerField()),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("pending", "pending"),
                            ("publishing", "publishing"),
                            ("done", "done"),
                            ("returned", "returned (unroutable)"),
                            ("failed", "failed"),
                            ("unknown", "may have arrived"),
                            ("cancelled", "cancelled"),
                            ("excluded", "excluded (possible repeat)"),
                        ],
                        default="pending",
                        max_length=10,
                    ),
                ),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("may_be_duplicated", models.BooleanField(default=False)),
                ("is_repeat", models.BooleanField(default=False)),
                ("shared_replay_id", models.CharField(blank=True, max_length=64)),
                ("error", models.TextField(blank=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "outcome",
                    models.CharField(
                        blank=True,
                        choices=[
                            ("delayed", "sent to a delay"),
                            ("delivered", "delivered (observed)"),
                            ("died", "dead-lettered again"),
                            ("unobserved", "not observed"),
                        ],
                        max_length=10,
                    ),
                ),
                ("outcome_at", models.DateTimeField(null=True)),
                (
                    "batch",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="items",
                        to="delayboard.replaybatch",
                    ),
                ),
                (
                    "died_as",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="delayboard.parkedmessage",
                    ),
                ),
                (
                    "parked_message",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="replays",
                        to="delayboard.parkedmessage",
                    ),
                ),
            ],
            options={
                "ordering": ("position",),
            },
        ),
        migrations.CreateModel(
            name="ReplayEdit",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("properties", models.BinaryField()),
                ("edited_at", models.DateTimeField()),
                (
                    "body",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="+",
                        to="delayboard.body",
                    ),
                ),
                (
                    "edited_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "item",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="edit",
                        to="delayboard.replayitem",
                    ),
                ),
            ],
        ),
        migrations.CreateModel(
            name="ReplayRoute",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("exchange", models.CharField(blank=True, max_length=255)),
                ("routing_key", models.CharField(blank=True, max_length=255)),
                ("why", models.TextField(blank=True)),
                ("verdict", models.TextField(blank=True)),
                ("ending", models.CharField(blank=True, max_length=20)),
                ("is_good", models.BooleanField(default=True)),
                ("after_ms", models.PositiveBigIntegerField(default=0)),
                ("items_number", models.PositiveIntegerField(default=0)),
                (
                    "batch",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="routes",
                        to="delayboard.replaybatch",
                    ),
                ),
            ],
            options={
                "ordering": ("is_good", "-items_number", "pk"),
            },
        ),
        migrations.AddField(
            model_name="replayitem",
            name="route",
            field=models.ForeignKey(
                db_index=False,
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="items",
                to="delayboard.replayroute",
            ),
        ),
        migrations.CreateModel(
            name="SavedSearch",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "searched",
                    models.CharField(
                        choices=[
                            ("parked_messages", "Parked messages"),
                            ("scheduled", "Scheduled"),
                            ("findings", "Findings"),
                        ],
                        default="parked_messages",
                        max_length=20,
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                ("query", models.CharField(max_length=2000)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="topology.broker"
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
                "verbose_name_plural": "saved searches",
                "ordering": ("name",),
            },
        ),
        migrations.CreateModel(
            name="ScheduledChange",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("queue", models.CharField(blank=True, max_length=255)),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("cancel", "cancel"),
                            ("reschedule", "reschedule"),
                            ("deliver_now", "deliver now"),
                        ],
                        max_length=12,
                    ),
                ),
                ("key", models.CharField(max_length=255)),
                ("content_id", models.CharField(max_length=32)),
                ("id_headers", models.JSONField(default=dict)),
                (
                    "routing_key",
                    models.CharField(blank=True, default="", max_length=255),
                ),
                ("destination", models.CharField(max_length=255)),
                ("due_at", models.DateTimeField()),
                ("new_due_at", models.DateTimeField(null=True)),
                ("is_copied", models.BooleanField(default=False)),
                ("copy_begun_at", models.DateTimeField(null=True)),
                ("copied_at", models.DateTimeField(null=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("pending", "requested"),
                            ("publishing", "publishing"),
                            ("done", "done"),
                            ("undone", "undone"),
                            ("missed", "missed"),
                            ("failed", "failed"),
                        ],
                        default="pending",
                        max_length=10,
                    ),
                ),
                ("is_settled", models.BooleanField(default=False)),
                ("trip", models.CharField(blank=True, max_length=300)),
                ("may_be_duplicated", models.BooleanField(default=False)),
                ("error", models.TextField(blank=True)),
                ("requested_at", models.DateTimeField(auto_now_add=True)),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, to="topology.broker"
                    ),
                ),
                (
                    "interception",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="changes",
                        to="delayboard.interception",
                    ),
                ),
                (
                    "message",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="analytics.scheduledmessage",
                    ),
                ),
                (
                    "requested_by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "topology",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT, to="topology.topology"
                    ),
                ),
            ],
            options={
                "ordering": ("due_at", "pk"),
            },
        ),
        migrations.AddConstraint(
            model_name="deadletterqueue",
            constraint=models.UniqueConstraint(
                fields=("broker", "queue"), name="one_word_per_queue"
            ),
        ),
        migrations.AddConstraint(
            model_name="importedtimeout",
            constraint=models.UniqueConstraint(
                fields=("topology", "key"), name="one_import_per_line"
            ),
        ),
        migrations.AddConstraint(
            model_name="interception",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state", "closed"), _negated=True),
                fields=("broker", "source", "queue"),
                name="one_interception_per_binding",
            ),
        ),
        migrations.AddIndex(
            model_name="messagegroup",
            index=models.Index(fields=["broker", "-last_at", "-id"], name="groups_of_broker"),
        ),
        migrations.AddConstraint(
            model_name="messagegroup",
            constraint=models.UniqueConstraint(
                fields=("broker", "fingerprint"), name="one_group_per_cause"
            ),
        ),
        migrations.AddConstraint(
            model_name="grouphour",
            constraint=models.UniqueConstraint(fields=("group", "hour"), name="one_count_per_hour"),
        ),
        migrations.AddIndex(
            model_name="movedmessage",
            index=models.Index(fields=["migration", "key"], name="begun_by_key"),
        ),
        migrations.AddIndex(
            model_name="parkedtext",
            index=models.Index(fields=["message_id", "parked_message"], name="texts_by_message"),
        ),
        migrations.AddIndex(
            model_name="parkedtext",
            index=models.Index(fields=["size", "parked_message"], name="texts_by_size"),
        ),
        migrations.AddIndex(
            model_name="parkedtext",
            index=models.Index(fields=["deaths", "parked_message"], name="texts_by_deaths"),
        ),
        migrations.AddIndex(
            model_name="parkedtext",
            index=models.Index(fields=["died_at", "parked_message"], name="texts_by_death"),
        ),
        migrations.AddIndex(
            model_name="parkedtext",
            index=models.Index(fields=["parked_at", "parked_message"], name="texts_by_parking"),
        ),
        migrations.AddIndex(
            model_name="parkedfield",
            index=models.Index(fields=["parked_message", "name"], name="fields_of_parked_message"),
        ),
        migrations.AddIndex(
            model_name="parkedfield",
            index=models.Index(fields=["name", "text", "parked_message"], name="fields_by_text"),
        ),
        migrations.AddIndex(
            model_name="parkedfield",
            index=models.Index(
                condition=models.Q(("number__isnull", False)),
                fields=["name", "number", "parked_message"],
                name="fields_by_number",
            ),
        ),
        migrations.AddIndex(
            model_name="parksession",
            index=models.Index(fields=["broker", "queue", "-id"], name="sessions_of_queue"),
        ),
        migrations.AddIndex(
            model_name="parkedmessage",
            index=models.Index(fields=["broker", "state", "-id"], name="parked_messages_of_broker"),
        ),
        migrations.AddIndex(
            model_name="parkedmessage",
            index=models.Index(fields=["group", "state", "-id"], name="parked_messages_of_group"),
        ),
        migrations.AddIndex(
            model_name="parkedmessage",
            index=models.Index(
                fields=["broker", "queue", "content_id"], name="parked_messages_by_content"
            ),
        ),
        migrations.AddIndex(
            model_name="parkedmessage",
            index=models.Index(fields=["state", "state_at"], name="parked_messages_by_age"),
        ),
        migrations.AddIndex(
            model_name="parkedmessage",
            index=models.Index(
                fields=["broker", "queue", "state", "-id"], name="parked_messages_of_queue"
            ),
        ),
        migrations.AddConstraint(
            model_name="parkedmessage",
            constraint=models.UniqueConstraint(
                condition=models.Q(("imported_uid", ""), _negated=True),
                fields=("broker", "imported_uid"),
                name="one_parked_message_per_import",
            ),
        ),
        migrations.AddConstraint(
            model_name="peekcount",
            constraint=models.UniqueConstraint(
                fields=("broker", "queue"), name="one_count_per_queue"
            ),
        ),
        migrations.AddIndex(
            model_name="queuedepth",
            index=models.Index(fields=["queue", "-at"], name="depths_of_queue"),
        ),
        migrations.AddIndex(
            model_name="replayroute",
            index=models.Index(fields=["batch", "-items_number"], name="routes_by_number"),
        ),
        migrations.AddIndex(
            model_name="replayitem",
            index=models.Index(
                condition=models.Q(
                    ("outcome__in", ("", "delayed")), ("state__in", ("done", "unknown"))
                ),
                fields=["batch", "position"],
                name="items_to_follow",
            ),
        ),
        migrations.AddIndex(
            model_name="replayitem",
            index=models.Index(
                condition=models.Q(("outcome", "died")), fields=["batch"], name="items_that_died"
            ),
        ),
        migrations.AddIndex(
            model_name="replayitem",
            index=models.Index(
                condition=models.Q(("shared_replay_id__gt", "")),
                fields=["shared_replay_id"],
                name="items_by_shared_replay_id",
            ),
        ),
        migrations.AddConstraint(
            model_name="replayitem",
            constraint=models.UniqueConstraint(
                fields=("batch", "position"), name="one_item_per_position"
            ),
        ),
        migrations.AddConstraint(
            model_name="savedsearch",
            constraint=models.UniqueConstraint(
                fields=("broker", "searched", "name"), name="one_search_per_name"
            ),
        ),
        migrations.AddIndex(
            model_name="scheduledchange",
            index=models.Index(
                fields=["interception", "state", "due_at"], name="delayboard__interce_4061a3_idx"
            ),
        ),
        migrations.AddConstraint(
            model_name="scheduledchange",
            constraint=models.UniqueConstraint(
                condition=models.Q(("state__in", ("pending", "publishing"))),
                fields=("message",),
                name="one_change_per_message",
            ),
        ),
        migrations.CreateModel(
            name="AlertReceiver",
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
                        choices=[
                            ("email", "E-mail"),
                            ("webhook", "Webhook"),
                            ("slack", "Slack"),
                            ("teams", "Microsoft Teams"),
                            ("pagerduty", "PagerDuty"),
                        ],
                        max_length=10,
                    ),
                ),
                (
                    "name",
                    models.CharField(
                        help_text="What pages show; never the address.", max_length=254
                    ),
                ),
                ("encrypted_address", models.TextField()),
                ("excluded_kinds", models.JSONField(blank=True, default=list)),
                ("group_minutes", models.PositiveSmallIntegerField(default=5)),
                ("quiet_from", models.TimeField(null=True)),
                ("quiet_until", models.TimeField(null=True)),
                ("sends_all_clear", models.BooleanField(default=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={
                "ordering": ("channel", "name", "id"),
            },
        ),
        migrations.CreateModel(
            name="AlertProblem",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("identity", models.CharField(max_length=300)),
                ("kind", models.CharField(max_length=30)),
                ("severity", models.CharField(max_length=10)),
                ("sentence", models.TextField()),
                ("since_at", models.DateTimeField()),
                ("resolved_at", models.DateTimeField(null=True)),
            ],
            options={
                "ordering": ("since_at", "pk"),
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("resolved_at", None)),
                        fields=("identity",),
                        name="one_open_problem",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="AlertMessage",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("title", models.CharField(max_length=200)),
                ("body", models.TextField()),
                ("is_test", models.BooleanField(default=False)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "waiting"),
                            ("sending", "sending"),
                            ("sent", "sent"),
                            ("failed", "failed"),
                        ],
                        db_index=True,
                        default="waiting",
                        max_length=10,
                    ),
                ),
                ("may_be_repeat", models.BooleanField(default=False)),
                ("attempts", models.PositiveSmallIntegerField(default=0)),
                ("next_at", models.DateTimeField(null=True)),
                ("error", models.TextField(blank=True)),
                ("created_at", models.DateTimeField()),
                ("ended_at", models.DateTimeField(null=True)),
                (
                    "receiver",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="messages",
                        to="delayboard.alertreceiver",
                    ),
                ),
            ],
            options={
                "ordering": ("-created_at", "-pk"),
            },
        ),
        migrations.CreateModel(
            name="AlertNotice",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("is_cleared", models.BooleanField(default=False)),
                (
                    "problem",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notices",
                        to="delayboard.alertproblem",
                    ),
                ),
                (
                    "receiver",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="notices",
                        to="delayboard.alertreceiver",
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("receiver", "problem"), name="one_notice_of_each"
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="PublishTemplate",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=100)),
                ("values", models.JSONField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="topology.broker"
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
                "ordering": ("name", "pk"),
                "constraints": [
                    models.UniqueConstraint(fields=("broker", "name"), name="one_template_per_name")
                ],
            },
        ),
        migrations.CreateModel(
            name="PublishJob",
            fields=[
                (
                    "id",
                    models.UUIDField(
                        default=uuid.uuid4, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("exchange", models.CharField(blank=True, max_length=255)),
                ("routing_key", models.CharField(blank=True, max_length=255)),
                ("target", models.CharField(blank=True, max_length=255)),
                ("delay_ms", models.BigIntegerField(default=0)),
                ("properties", models.BinaryField(default=b"\x00\x00")),
                ("body", models.BinaryField(default=b"")),
                ("number", models.PositiveIntegerField()),
                ("rate", models.FloatField(help_text="Messages a second")),
                ("begun", models.PositiveIntegerField(default=0)),
                ("unanswered", models.JSONField(default=list)),
                ("published", models.PositiveIntegerField(default=0)),
                ("returned", models.PositiveIntegerField(default=0)),
                ("unknown", models.PositiveIntegerField(default=0)),
                ("returned_why", models.TextField(blank=True)),
                ("repeated", models.PositiveIntegerField(default=0)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("started_at", models.DateTimeField(null=True)),
                (
                    "broker",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, to="topology.broker"
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
                (
                    "topology",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
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
                "ordering": ("-created_at",),
            },
        ),
        migrations.RunPython(SEARCH_INDEX.make, SEARCH_INDEX.drop),
    ]
