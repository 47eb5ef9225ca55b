"""A long piece of work as a row, done by whoever holds its lease."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from topology.models.broker import Broker


class WorkState(models.TextChoices):
    WAITING = "waiting", "waiting"
    RUNNING = "running", "running"
    DONE = "done", "done"
    FAILED = "failed", "failed"
    CANCELLED = "cancelled", "cancelled"


# Kind of the work of a topology's probes, which lasts as long as they are enabled.
PROBES = "probes"
# Kinds that hold messages on the way to their receivers: read-only lets them end.
INTERCEPT, REPLACE_QUEUE = "intercept", "replace_queue"
FINISHED_ONCE_BEGUN = (INTERCEPT, REPLACE_QUEUE)
# Kinds with one row for each subject, whose worker has the lease (topology/work.py).
ALERTS, NIGHTLY, CHANGING, TASK = "alerts", "nightly", "changing", "task"
EXCLUSIVE = (ALERTS, NIGHTLY, CHANGING, TASK)
ENDED = (WorkState.DONE, WorkState.FAILED, WorkState.CANCELLED)


class Work(models.Model):
    """`fence` grows with every claim: a worker that lost its lease can no longer write.

    What waits and has `pause_requested` is paused: it is claimed only to be cancelled.
    """

    kind = models.CharField(max_length=30)
    subject = models.BigIntegerField(help_text="The row that the work is about.")
    broker = models.ForeignKey(Broker, models.CASCADE, null=True)
    state = models.CharField(max_length=10, choices=WorkState.choices, default=WorkState.WAITING)
    cancel_requested = models.BooleanField(default=False)
    pause_requested = models.BooleanField(default=False)
    fence = models.PositiveIntegerField(default=0)
    owner = models.CharField(max_length=100, blank=True)
    leased_until_at = models.DateTimeField(null=True)
    not_before_at = models.DateTimeField(null=True)
    attempts = models.PositiveIntegerField(default=0)
    done = models.PositiveIntegerField(default=0)
    total = models.PositiveIntegerField(default=0)
    error = models.TextField(blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    created_at = models.DateTimeField(auto_now_add=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("-pk",)
        indexes = (models.Index(fields=("kind", "state")),)
        constraints = (
            models.UniqueConstraint(
                fields=("kind", "subject"),
                condition=models.Q(kind__in=EXCLUSIVE),
                name="one_exclusive_work_each",
            ),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.subject}: {self.state}"

    @property
    def is_ended(self) -> bool:
        return self.state in ENDED
