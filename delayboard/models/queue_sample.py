"""The history of queues: what the management API of RabbitMQ forgets."""

from __future__ import annotations

from django.db import models

from topology.models import Broker


class QueueSample(models.Model):
    """The numbers of a queue at a moment, stored where they differ from those before.

    `queue` is "" for the sums of the virtual host, which each moment has: where they are missing,
    nothing was read. `messages` is None for a queue that no longer exists, and where RabbitMQ does
    not report it. The rates are messages per second since the moment before, None where unknown.
    """

    broker = models.ForeignKey(Broker, models.CASCADE)
    queue = models.TextField()
    at = models.DateTimeField()
    messages = models.PositiveBigIntegerField(null=True)
    publish_rate = models.FloatField(null=True)
    deliver_rate = models.FloatField(null=True)
    ack_rate = models.FloatField(null=True)

    class Meta:
        ordering = ("-at", "-pk")
        indexes = (
            models.Index(fields=("broker", "queue", "at"), name="samples_of_queue"),
            models.Index(fields=("at",), name="samples_by_age"),
        )

    def __str__(self) -> str:
        return f"{self.queue} at {self.at}: {self.messages}"
