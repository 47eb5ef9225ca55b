"""One of the worker's tasks, as the worker last reported it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Literal, TypeAlias

from django.db import models
from django.utils import timezone

# Function by which a task reports that it is alive, with details.
Beat: TypeAlias = Callable[[Mapping[str, object]], None]
LATE = timedelta(seconds=10)
CHANGES = "queue-changes"
CLEANING = "cleaning"
INDEX = "index"
MIGRATIONS = "migrations"
PARKING = "parking"
PARKED_MESSAGES = "parked_messages"
PUBLISH_JOBS = "publish-jobs"
REPLAYS = "replay"
SENDING = "log-transfer"
Kind = Literal["record", "firehose", "wait", "probe", "park", "intercept"]


def task_key(kind: Kind, of: str | int) -> str:
    """The key of a task that there is for each of several rows, from the slug or id of its row.

    For a topology: record its tap, wait for what is due, probe; for a broker: its firehose; for a
    DeadLetterQueue: park; for an Interception: intercept.
    """
    return f"{kind}:{of}"


def is_missing(key: str) -> bool:
    """Whether no worker does this task."""
    return all(task.is_late for task in BackgroundTask.objects.filter(key=key))


class BackgroundTask(models.Model):
    """`beat_at` is the last heartbeat; a task that is wanted and has none is late.

    `host` is the name of the event log (analytics/log.py) of a task that each host has, else "".
    """

    key = models.CharField(max_length=100)
    host = models.CharField(max_length=100, blank=True, default="", db_default="")
    name = models.CharField(max_length=200)
    broker = models.ForeignKey("topology.Broker", models.CASCADE, null=True)
    started_at = models.DateTimeField(null=True)
    beat_at = models.DateTimeField(null=True)
    last_error = models.TextField(blank=True)
    last_error_at = models.DateTimeField(null=True)
    details = models.JSONField(default=dict)

    class Meta:
        ordering = ("key", "host")
        constraints = (
            models.UniqueConstraint(fields=("key", "host"), name="one_row_per_task_and_host"),
        )
        verbose_name_plural = "background tasks"

    def __str__(self) -> str:
        return self.name

    @property
    def is_late(self) -> bool:
        return self.beat_at is None or timezone.now() - self.beat_at > LATE

    @property
    def is_failing(self) -> bool:
        """The last attempt ended in an error and none has worked since."""
        return bool(self.last_error)
