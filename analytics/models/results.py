"""The nightly jobs' results: one set of rows per day, replaced as a whole.

Broker and topology are slugs, as the log has them: results outlive a topology's row.
`_ms` are figures for charts; None where nothing was measured.
"""

from __future__ import annotations

from django.db import models


class ResultRow(models.Model):
    """What a row is about."""

    day = models.DateField(db_index=True)
    broker = models.CharField(max_length=100)
    topology = models.CharField(max_length=100)

    class Meta:
        abstract = True
        ordering = ("day", "broker", "topology", "id")

    def __str__(self) -> str:
        return f"{self.day} {self.broker}/{self.topology}"


class AccuracyRow(ResultRow):
    """How late messages left one delay; all entries are measured, uncounted, open or missing."""

    requested_delay = models.DurationField()
    measured = models.PositiveBigIntegerField()
    p50_ms = models.FloatField(null=True)
    p95_ms = models.FloatField(null=True)
    p99_ms = models.FloatField(null=True)
    max_ms = models.FloatField(null=True)
    early_share = models.FloatField(null=True)
    uncounted = models.PositiveBigIntegerField()
    open = models.PositiveBigIntegerField()
    missing = models.PositiveBigIntegerField()

    @property
    def entered(self) -> int:
        return self.measured + self.uncounted + self.open + self.missing

    @property
    def early_percent(self) -> float:
        return 100 * (self.early_share or 0.0)


class LatenessHistogram(ResultRow):
    """How many messages of one hour left so late: from_ms <= lateness < to_ms."""

    requested_delay = models.DurationField()
    hour_at = models.DateTimeField()
    from_ms = models.FloatField(null=True)
    to_ms = models.FloatField(null=True)
    messages = models.PositiveBigIntegerField()


class RetryRow(ResultRow):
    """How many of the day's messages were retried."""

    messages = models.PositiveBigIntegerField()
    retried = models.PositiveBigIntegerField()
    retried_share = models.FloatField()

    @property
    def retried_percent(self) -> float:
        return 100 * self.retried_share


class AttemptRow(ResultRow):
    """How many messages were retried in this attempt."""

    attempt = models.PositiveIntegerField()
    messages = models.PositiveBigIntegerField()


class DeathRow(ResultRow):
    """How often messages died of this reason in this queue."""

    reason = models.CharField(max_length=255)
    queue = models.CharField(max_length=255)
    deaths = models.PositiveBigIntegerField()
