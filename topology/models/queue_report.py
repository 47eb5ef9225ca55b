from __future__ import annotations

from django.db import models

from topology.models.broker import Broker


class QueueReport(models.Model):
    """What a rule of findings has to report of a queue until `until_at`.

    For what RabbitMQ's numbers do not show: the worker reads it from the list of scheduled
    messages and from recorders, an operator by a peek.
    """

    broker = models.ForeignKey(Broker, models.CASCADE, related_name="queue_reports")
    rule = models.CharField(max_length=10)
    queue = models.CharField(max_length=255)
    number = models.PositiveBigIntegerField()
    sentence = models.TextField()
    until_at = models.DateTimeField()
    is_peeked = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.sentence
