from __future__ import annotations

from django.db import models

from topology.models import Topology


class Within(models.IntegerChoices):
    """Limits of lateness, in ms: edges of the buckets in which lateness is counted."""

    MS_10 = 10, "10ms"
    MS_100 = 100, "100ms"
    MS_500 = 500, "500ms"
    S_1 = 1000, "1s"
    S_2 = 2000, "2s"
    S_5 = 5000, "5s"
    S_10 = 10_000, "10s"
    S_100 = 100_000, "1m 40s"


class Slo(models.Model):
    """The target of a topology: this share of measured deliveries is at most so late."""

    topology = models.OneToOneField(Topology, models.CASCADE, related_name="slo")
    percent = models.FloatField(help_text="Share of measured deliveries, in percent.")
    within_ms = models.PositiveIntegerField(choices=Within.choices, default=Within.S_1)

    def __str__(self) -> str:
        return f"{self.percent:g} % within {Within(self.within_ms).label} of due"
