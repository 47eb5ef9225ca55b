"""What people decided about queues that may hold dead letters, and how deep those were."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from topology.models import Broker


class DeadLetterQueue(models.Model):
    """A person's word on a queue: only one that was confirmed may be parked or watched."""

    broker = models.ForeignKey(Broker, models.CASCADE)
    queue = models.CharField(max_length=255)
    is_confirmed = models.BooleanField(help_text="False: a user excluded the queue.")
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    decided_at = models.DateTimeField()
    parks_automatically = models.BooleanField(default=False)
    watched_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    watched_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ("queue",)
        constraints = (
            models.UniqueConstraint(fields=("broker", "queue"), name="one_word_per_queue"),
        )

    def __str__(self) -> str:
        return self.queue


class FailureQueue(models.Model):
    """A queue with a message whose x-death records a failure elsewhere.

    Seen by a check of an operator, or by the firehose.
    """

    broker = models.ForeignKey(Broker, models.CASCADE)
    queue = models.CharField(max_length=255)
    seen_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("broker", "queue"), name="one_failure_queue"),
        )

    def __str__(self) -> str:
        return self.queue


class QueueDepth(models.Model):
    """How many messages were in a confirmed queue at a moment: its growth."""

    queue = models.ForeignKey(DeadLetterQueue, models.CASCADE, related_name="depths")
    at = models.DateTimeField()
    messages = models.PositiveIntegerField()

    class Meta:
        ordering = ("-at",)
        indexes = (models.Index(fields=("queue", "-at"), name="depths_of_queue"),)

    def __str__(self) -> str:
        return f"{self.messages} at {self.at}"


class PeekCount(models.Model):
    """How many looks of ours a queue's messages have had, where each costs one delivery."""

    broker = models.ForeignKey(Broker, models.CASCADE)
    queue = models.CharField(max_length=255)
    peeks = models.PositiveIntegerField(default=0)
    last_at = models.DateTimeField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("broker", "queue"), name="one_count_per_queue"),
        )

    def __str__(self) -> str:
        return f"{self.peeks} looks into {self.queue}"
