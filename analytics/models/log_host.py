"""The machines that record, and what each has moved to LOG_URL."""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

# Time without a report after which a host is silent: a worker reports every few seconds.
SILENT = timedelta(seconds=30)


class LogHosts(models.Manager["LogHost"]):
    def get_queryset(self) -> models.QuerySet[LogHost]:
        """With `is_silent`, which the database decides: `seen_at` is of its clock."""
        is_silent = Q(has_ended=False, seen_at__lt=Now() - SILENT)
        return super().get_queryset().annotate(**{"is_silent": is_silent})


class LogHost(models.Model):
    """A machine with an event log of its own; `name` is that of the log.

    `seen_at` is by the database's clock, as the clocks of hosts may differ. `unread_since` is when
    the oldest line was recorded that is not in the index, as of `seen_at` and by the same clock.
    `is_silent`: killed or cut off, so that nobody knows what it recorded since.
    `unsent_since` is the begin of the oldest hour with lines that are not at LOG_URL; `is_sending`
    is false where LOG_URL is not set. `has_ended` when the worker was stopped and not killed.
    `keys` is a fingerprint of the secret keys. `clock_ms` is its clock minus the database's.
    """

    name = models.CharField(max_length=100, unique=True)
    seen_at = models.DateTimeField()
    has_ended = models.BooleanField(default=False)
    unread_since = models.DateTimeField(null=True)
    unread_bytes = models.BigIntegerField(default=0)
    is_sending = models.BooleanField(default=False)
    unsent_since = models.DateTimeField(null=True)
    unsent_bytes = models.BigIntegerField(default=0)
    keys = models.CharField(max_length=40, blank=True)
    clock_ms = models.BigIntegerField(db_default=0)
    is_silent: bool

    objects = LogHosts()

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name


def count_live(name: str) -> int:
    """How many hosts have a worker now, with this one."""
    others = LogHost.objects.exclude(name=name).filter(has_ended=False)
    return 1 + others.filter(seen_at__gt=Now() - SILENT).count()


class SentPart(models.Model):
    """Lines of a host's hour that lie at LOG_URL as one object, which never changes.

    `files` has, of each file of the hour, the byte until which its lines are in this or an earlier
    part. `bytes` is the size of the lines. The row is written after the object, whose name is used
    once: a database that was restored does not know all objects.
    """

    host = models.CharField(max_length=100)
    day = models.DateField()
    hour = models.PositiveSmallIntegerField()
    number = models.PositiveIntegerField()
    uid = models.CharField(max_length=8)
    bytes = models.BigIntegerField()
    files = models.JSONField()
    sent_at = models.DateTimeField()

    class Meta:
        ordering = ("day", "hour", "host", "number")
        constraints = (
            models.UniqueConstraint(
                fields=("host", "day", "hour", "number"), name="one_part_per_number"
            ),
        )

    def __str__(self) -> str:
        return self.path

    @property
    def path(self) -> str:
        """The path in the log that is made of all hosts'; with `.gz` below LOG_URL."""
        folder = f"date={self.day}/hour={self.hour:02}"
        return f"{folder}/host.{self.host}-{self.number}-{self.uid}.jsonl"


class CompactedDay(models.Model):
    """What is Parquet of a day of all hosts' log, as any of them may compute the next run."""

    day = models.DateField(unique=True)
    manifest = models.TextField()

    def __str__(self) -> str:
        return str(self.day)


class RepeatedCopy(models.Model):
    """A redelivered copy in the index whose first copy may come later, from another host's log."""

    topology = models.ForeignKey("topology.Topology", models.CASCADE, related_name="+")
    kind = models.CharField(max_length=20)
    key = models.CharField(max_length=255)
    attempt = models.PositiveIntegerField()
    recorded_at = models.DateTimeField()

    class Meta:
        indexes = (models.Index(fields=("topology", "recorded_at")),)

    def __str__(self) -> str:
        return f"{self.kind} {self.key} {self.attempt}"
