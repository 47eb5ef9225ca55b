"""Moments that explain figures: deploys, changes, replays and outages, as people name them."""

from __future__ import annotations

from django.db import models

from topology.models import Broker, Topology


class AnnotationKind(models.TextChoices):
    DEPLOY = "deploy", "deploy"
    CHANGE = "change", "change"
    REPLAY = "replay", "replay"
    OUTAGE = "outage", "outage"


class Annotation(models.Model):
    """One that a person or a program added: of a topology, of a broker, or of all brokers.

    What Delayboard did or recorded itself has no row here: analytics/results/annotations.py reads
    it from the audit log and from the gaps.
    """

    at = models.DateTimeField(db_index=True)
    until_at = models.DateTimeField(null=True)
    kind = models.CharField(
        max_length=10, choices=AnnotationKind.choices, default=AnnotationKind.DEPLOY
    )
    text = models.CharField(max_length=200)
    version = models.CharField(max_length=100, blank=True, default="")
    broker = models.ForeignKey(Broker, models.CASCADE, null=True)
    topology = models.ForeignKey(Topology, models.CASCADE, null=True)
    author = models.CharField(max_length=150)

    class Meta:
        ordering = ("at", "pk")

    def __str__(self) -> str:
        return f"{self.kind} {self.at:%Y-%m-%d %H:%M} {self.text}"
