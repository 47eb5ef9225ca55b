"""The machines that record, and what each has moved to LOG_URL."""

from __future__ import annotations

from datetime import timedelta

from django.db import models
from django.utils import timezone

# A worker reports every few seconds.
SILENT = timedelta(seconds=30)


class LogHost(models.Model):
    """A machine with an event log of its own; `name` is that of the log.

    `unread_since` is when the oldest line was recorded that is not in the index, as of `seen_at`.
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

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    @property
    def is_silent(self) -> bool:
        """Killed or cut off: nobody knows what it recorded since."""
        return not self.has_ended and timezone.now() - self.seen_at > SILENT


def count_live(name: str) -> int:
    """How many hosts have a worker now, with this one."""
    others = LogHost.objects.exclude(name=name).filter(has_ended=False)
    return 1 + others.filter(seen_at__gt=timezone.now() - SILENT).count()


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
        """In the log that is made of all hosts'; with `.gz` below LOG_URL."""
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
