from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from django.db import models
from django.db.models import QuerySet

from topology.models import Probing, State, Topology


class Probe(models.Model):
    """A message of ours that measures a delay.

    The row is written before the publish; `sent_at` is the moment of the publish, once the broker
    confirmed it or the probe arrived. Without it nothing is known of the probe, so it is neither
    overdue nor abandoned. `overdue_at`: its queue was read and empty a while after it was due.
    `is_in_time`: it was read as it arrived, so `arrived_at` measures its delay.
    """

    topology = models.ForeignKey(Topology, models.CASCADE, related_name="probes")
    message_id = models.CharField(max_length=64, unique=True)
    delay = models.DurationField()
    created_at = models.DateTimeField()
    sent_at = models.DateTimeField(null=True)
    overdue_at = models.DateTimeField(null=True)
    arrived_at = models.DateTimeField(null=True)
    abandoned_at = models.DateTimeField(null=True)
    is_in_time = models.BooleanField(default=True)

    class Meta:
        ordering = ("pk",)
        indexes = (models.Index(fields=("topology", "created_at"), name="probe_of_topology"),)

    def __str__(self) -> str:
        return self.message_id

    @property
    def due_at(self) -> datetime:
        return (self.sent_at or self.created_at) + self.delay

    @property
    def status(self) -> str:
        if self.arrived_at:
            return "arrived" if self.is_in_time else "arrived, not measured"
        if self.abandoned_at:
            return "not arrived within an hour of due"
        if self.overdue_at:
            return "overdue"
        return "on its way" if self.sent_at else "not confirmed"

    @property
    def lateness(self) -> timedelta | None:
        """None until it has arrived, and of one that may have waited for a worker."""
        return self.arrived_at - self.due_at if self.arrived_at and self.is_in_time else None

    @classmethod
    def in_flight(cls, topology: Topology) -> QuerySet[Probe]:
        return cls.objects.filter(topology=topology, arrived_at=None, abandoned_at=None)

    @classmethod
    def late(cls, topologies: Collection[Topology], at: datetime) -> list[Probe]:
        """The probes in flight that should have arrived by then: a queue may keep them."""
        rows = cls.objects.filter(
            topology__in=topologies, arrived_at=None, abandoned_at=None, sent_at__lt=at
        )
        return [one for one in rows.select_related("topology") if one.due_at < at]

    @classmethod
    def overdue(cls) -> QuerySet[Probe]:
        """The overdue probes of topologies that still have probes."""
        return (
            cls.objects.filter(overdue_at__isnull=False, arrived_at=None, abandoned_at=None)
            .filter(topology__state=State.APPLIED)
            .exclude(topology__probing=Probing.OFF)
        )
