"""What was found in a broker: findings and their mutes, reports of queues, drift."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import models

from topology.models.broker import Broker
from topology.models.topology import Topology


class FindingPeriod(models.Model):
    """A time in which a broker had a finding; `resolved_at` None while it has it.

    The worker writes these. `key` is that of the finding, `severity` a number of `Severity`,
    `objects_count` how many objects it last had.
    """

    broker = models.ForeignKey(Broker, models.CASCADE, related_name="finding_periods")
    key = models.CharField(max_length=30)
    rule = models.CharField(max_length=10)
    severity = models.PositiveSmallIntegerField()
    title = models.TextField()
    objects_count = models.PositiveIntegerField()
    appeared_at = models.DateTimeField()
    resolved_at = models.DateTimeField(null=True, db_index=True)

    class Meta:
        ordering = ("-appeared_at", "-pk")
        constraints = (
            models.UniqueConstraint(
                fields=("broker", "key"),
                condition=models.Q(resolved_at=None),
                name="one_open_period_per_finding",
            ),
        )

    def __str__(self) -> str:
        return self.title


class FindingMute(models.Model):
    """A finding that is not counted until `until_at`, and why."""

    broker = models.ForeignKey(Broker, models.CASCADE, related_name="finding_mutes")
    key = models.CharField(max_length=30)
    reason = models.CharField(max_length=300)
    until_at = models.DateTimeField()
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("broker", "key"), name="one_mute_per_finding"),
        )

    def __str__(self) -> str:
        return f"{self.key} until {self.until_at:%Y-%m-%d %H:%M} UTC"

    @classmethod
    def active(cls, now: datetime) -> models.QuerySet[FindingMute]:
        """The mutes whose end is not reached."""
        return cls.objects.filter(until_at__gt=now)


class Drift(models.Model):
    """How an applied topology differs from its definition, as the worker last saw it.

    `objects_count` are all objects of the definition, `missing` those that do not exist, `changed`
    those that exist with other arguments. `since_at` is when the worker first saw a difference.
    """

    topology = models.OneToOneField(Topology, models.CASCADE, related_name="drift")
    since_at = models.DateTimeField()
    objects_count = models.PositiveIntegerField()
    missing = models.PositiveIntegerField()
    changed = models.PositiveIntegerField()

    def __str__(self) -> str:
        return self.sentence

    @property
    def sentence(self) -> str:
        parts = []
        if self.missing:
            are = "is" if self.missing == 1 else "are"
            parts.append(f"{self.missing} of {self.objects_count} objects {are} missing")
        if self.changed:
            differ = "differs" if self.changed == 1 else "differ"
            parts.append(f"{self.changed} {differ} from the definition")
        return f"{', '.join(parts)} since {self.since_at:%Y-%m-%d %H:%M:%S} UTC."


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
