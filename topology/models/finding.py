"""Stored facts about findings: when each was present, and which are muted."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings
from django.db import models

from topology.models.broker import Broker


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
        """Those whose end is not reached."""
        return cls.objects.filter(until_at__gt=now)
