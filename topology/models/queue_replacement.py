"""The replacement of a queue whose arguments differ from its definition."""

from __future__ import annotations

from django.db import models

from topology.models.topology import Topology
from topology.models.work import Work, WorkState


class ReplacementStep(models.TextChoices):
    REROUTING = "rerouting", "switching a routing key to another queue"
    SWITCHING = "switching", "switching the bindings to the temporary queue"
    DRAINING = "draining", "waiting until the old queue is empty"
    DELETING = "deleting", "deleting the old queue"
    RETURNING = "returning", "switching the bindings to the new queue"
    SETTLING = "settling", "waiting until the temporary queue is empty"


class QueueReplacement(models.Model):
    """`step` is written before its first change of the broker, and may be repeated.

    `waiting` is how many messages the queue that is to be deleted held when the broker last
    reported it, `empty_since_at` since when that is none. `reroute` is the exchange, the key and
    the new queue of messages that reach `queue` no more.
    """

    topology = models.ForeignKey(Topology, models.CASCADE, related_name="replacements")
    queue = models.CharField(max_length=255)
    work = models.OneToOneField(Work, models.CASCADE)
    step = models.CharField(
        max_length=10, choices=ReplacementStep.choices, default=ReplacementStep.SWITCHING
    )
    reroute = models.JSONField(null=True)
    waiting = models.PositiveIntegerField(null=True)
    empty_since_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"“{self.queue}”, {self.get_step_display()}"

    @classmethod
    def open_of(cls, topology: Topology) -> models.QuerySet[QueueReplacement]:
        """The replacements that are not finished."""
        unfinished = (WorkState.WAITING, WorkState.RUNNING)
        return cls.objects.filter(topology=topology, work__state__in=unfinished)
