"""The nightly jobs' results: one set of rows per day, replaced as a whole.

Broker and topology are slugs, as the log has them: results outlive a topology's row.
`_ms` are figures for charts; None where nothing was measured.
"""

from __future__ import annotations

from django.db import models

from topology.models import Topology


class ResultRow(models.Model):
    """What a row is about."""

    day = models.DateField(db_index=True)
    broker = models.CharField(max_length=100)
    topology = models.CharField(max_length=300, blank=True, default="")

    class Meta:
        abstract = True
        ordering = ("day", "broker", "topology", "id")

    def __str__(self) -> str:
        return f"{self.day} {self.broker}/{self.topology}"


class Reason(models.TextChoices):
    """Why the lateness of a delivery is not measured."""

    NO_ENTRY = (
        "no_entry",
        "The event log of this day does not contain the entry into the delay.",
    )
    NO_DELAY = "no_delay", "Nothing states the requested delay of the queue."
    TWO_CLOCKS = "two_clocks", "Two different clocks timed the entry and the delivery."
    BACKLOG = "backlog", "The recorder read the entry or the delivery from a backlog."


class DayFigures(ResultRow):
    """All figures of one day and cut: "" in topology, pattern or destination means all of them.

    `figures` are the counts of analytics.results.figures. The other columns are those by which
    the database sorts and adds up topologies.
    """

    pattern = models.CharField(max_length=40, blank=True, default="")
    destination = models.CharField(max_length=255, blank=True, default="")
    measured = models.PositiveBigIntegerField(default=0)
    p99_ms = models.FloatField(null=True)
    messages = models.PositiveBigIntegerField(default=0)
    retried = models.PositiveBigIntegerField(default=0)
    exhausted = models.PositiveBigIntegerField(default=0)
    entered = models.PositiveBigIntegerField(default=0)
    unexplained = models.PositiveBigIntegerField(default=0)
    figures = models.TextField(help_text="JSON, read by a faster parser than Django's.")

    class Meta(ResultRow.Meta):
        indexes = (
            models.Index(fields=("topology", "pattern", "destination", "day"), name="by_cut"),
            # Has all that the sums by topology need, so that they read no JSON.
            models.Index(
                fields=(
                    *("destination", "pattern", "day", "broker", "topology", "p99_ms"),
                    *("measured", "messages", "retried", "exhausted", "entered", "unexplained"),
                ),
                name="topologies_by_day",
            ),
        )


class UnexplainedMessage(ResultRow):
    """A message that was due and has no recorded exit, death or cancellation."""

    message = models.CharField(max_length=255)
    due_at = models.DateTimeField()


class Unusual(models.TextChoices):
    LATENESS = "lateness", "Late deliveries"
    FAILURES = "failures", "Failures"
    DEAD_LETTERS = "dead_letters", "Dead letters"


class UnusualChange(ResultRow):
    """A count of a day that is far above that of the 28 days before; analytics.results.unusual.

    `observed` of `sample` are those of `hour`, the worst from `first_hour` to `last_hour`, or of
    the whole day (null). `usual_low` to `usual_high` is the usual range, from `compared` values;
    `score` is in standard errors. Late deliveries are later than `limit_ms`.
    """

    kind = models.CharField(max_length=12, choices=Unusual.choices)
    hour = models.PositiveSmallIntegerField(null=True)
    first_hour = models.PositiveSmallIntegerField(null=True)
    last_hour = models.PositiveSmallIntegerField(null=True)
    observed = models.PositiveBigIntegerField()
    sample = models.PositiveBigIntegerField()
    usual_low = models.FloatField()
    usual_high = models.FloatField()
    compared = models.PositiveSmallIntegerField()
    limit_ms = models.FloatField(null=True)
    score = models.FloatField()


class ConsumptionPeak(models.Model):
    """The most messages that consumers of a queue took in one minute of a day (UTC)."""

    broker = models.ForeignKey("topology.Broker", models.CASCADE, related_name="+")
    queue = models.CharField(max_length=255)
    day_at = models.DateTimeField()
    messages = models.PositiveIntegerField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("broker", "queue", "day_at"), name="one_peak_per_day"),
        )

    def __str__(self) -> str:
        return f"{self.messages} a minute from {self.queue} on {self.day_at:%Y-%m-%d}"


class NightlyReport(models.Model):
    """The report of one UTC day over all brokers, as the newest run of the day left it."""

    day = models.DateField(unique=True)
    made_at = models.DateTimeField()
    html = models.TextField()
    pdf = models.BinaryField(null=True)
    pdf_error = models.TextField(blank=True)
    """Why there is no PDF."""

    class Meta:
        ordering = ("-day",)

    def __str__(self) -> str:
        return f"report of {self.day}"


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
