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


class DelayRow(ResultRow):
    """What it is about: a topology's delay, or a queue that is known from a trace alone."""

    queue = models.CharField(max_length=255, default="", blank=True)

    class Meta(ResultRow.Meta):
        abstract = True

    @property
    def place(self) -> str:
        return self.topology or self.queue


class AccuracyRow(DelayRow):
    """How late messages left one delay: each is measured, uncounted, open or missing.

    `taken` of the measured ones were timed when a consumer took them.
    """

    requested_delay = models.DurationField()
    measured = models.PositiveBigIntegerField()
    taken = models.PositiveBigIntegerField(default=0)
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


class Reason(models.TextChoices):
    """Why the lateness of a delivery is not measured."""

    NO_ENTRY = (
        "no_entry",
        "The event log of this day does not contain the entry into the delay.",
    )
    NO_DELAY = "no_delay", "Nothing states the requested delay of the queue."
    TWO_CLOCKS = "two_clocks", "Two different clocks timed the entry and the delivery."
    BACKLOG = "backlog", "The recorder read the entry or the delivery from a backlog."


class UncountedRow(DelayRow):
    """How many deliveries of one delay are not measured for one reason; a delay of 0 is unknown."""

    requested_delay = models.DurationField()
    reason = models.CharField(max_length=20, choices=Reason.choices)
    messages = models.PositiveBigIntegerField()


class LatenessHistogram(DelayRow):
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
