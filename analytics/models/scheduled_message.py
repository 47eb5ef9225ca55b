from __future__ import annotations

from datetime import datetime, timedelta

from django.db import models


class ScheduledMessage(models.Model):
    """One trip of a message through a delay, as the tap saw it.

    Waiting while `left_at` is empty. A row without `entered_at` saw only the exit: the
    entry may still come from another recorder, or was before the tap. `key` is the
    message id, or the content's hash where there is none; the same key may wait many times.
    """

    broker = models.ForeignKey("topology.Broker", models.CASCADE, related_name="+")
    topology = models.ForeignKey("topology.Topology", models.CASCADE, null=True, related_name="+")
    key = models.CharField(max_length=255)
    message_id = models.CharField(max_length=255, blank=True)
    content_id = models.CharField(max_length=32)
    tracking_id = models.CharField(max_length=100, blank=True)
    attempt = models.PositiveIntegerField()
    requested_delay = models.DurationField()
    entered_at = models.DateTimeField(null=True)
    due_at = models.DateTimeField(null=True)
    left_at = models.DateTimeField(null=True)
    destination = models.CharField(max_length=255, blank=True)
    queue = models.CharField(max_length=255, blank=True)
    size = models.PositiveBigIntegerField(default=0, help_text="Bytes of the body.")
    caught_up = models.BooleanField(default=True)

    class Meta:
        indexes = (
            models.Index(fields=("topology", "key", "attempt"), name="scheduled_trip"),
            models.Index(
                fields=("due_at", "id"),
                name="scheduled_waiting",
                condition=models.Q(left_at=None, entered_at__isnull=False),
            ),
            models.Index(
                fields=("tracking_id",),
                name="scheduled_tracked",
                condition=~models.Q(tracking_id=""),
            ),
        )

    def __str__(self) -> str:
        return f"{self.key} due {self.due_at}"

    @property
    def lateness(self) -> timedelta | None:
        """How long after its due time it left; negative when early, None until both are known."""
        if self.left_at is None or self.due_at is None:
            return None
        return self.left_at - self.due_at

    def overdue_by(self, now: datetime) -> timedelta:
        """How long it should have left by now; zero when it is not due."""
        if self.left_at is not None or self.due_at is None:
            return timedelta(0)
        return max(now - self.due_at, timedelta(0))
