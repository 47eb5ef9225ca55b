"""The counters of Now at a moment."""

from __future__ import annotations

from django.db import models

from topology.models import Broker


class CounterSample(models.Model):
    """The known counters of a broker by their keys; Now shows their change since then."""

    broker = models.ForeignKey(Broker, models.CASCADE)
    at = models.DateTimeField()
    numbers = models.JSONField()

    class Meta:
        ordering = ("-at",)
        indexes = (models.Index(fields=("broker", "at"), name="counters_of_broker"),)

    def __str__(self) -> str:
        return f"{self.broker} at {self.at}"
