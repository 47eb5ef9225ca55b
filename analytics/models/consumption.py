from __future__ import annotations

from django.db import models


class ConsumptionPeak(models.Model):
    """The most messages that consumers of a queue took in one minute of a day (UTC)."""

    broker = models.ForeignKey("topology.Broker", models.CASCADE, related_name="+")
    queue = models.CharField(max_length=255)
    day_at = models.DateTimeField()
    messages = models.PositiveIntegerField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("broker", "queue", "day_at"), name="one_peak_per_day"),
        )

    def __str__(self) -> str:
        return f"{self.messages} a minute from {self.queue} on {self.day_at:%Y-%m-%d}"
