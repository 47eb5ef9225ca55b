"""How often we looked into a queue."""

from __future__ import annotations

from django.db import models

from topology.models import Broker


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
