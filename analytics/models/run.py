from __future__ import annotations

from datetime import UTC, timedelta
from operator import itemgetter

from django.db import models

from analytics.launch import CONCURRENT


class RunState(models.TextChoices):
    REQUESTED = "requested", "waiting for the worker"
    RUNNING = "running", "running"
    DONE = "done", "done"
    NO_DATA = "no_data", "no data"
    FAILED = "failed", "failed"


MARKS = {
    RunState.REQUESTED: "state-busy",
    RunState.RUNNING: "state-busy",
    RunState.DONE: "state-ok",
    RunState.NO_DATA: "state-off",
    RunState.FAILED: "state-error",
}


# Text in the place of an error for a day that the demo generated.
GENERATED = "Computed from events that the demo generated; nothing of this day was recorded."


class ExcludedLine(models.TextChoices):
    """Why a line of the event log is in no figure."""

    MALFORMED = "malformed", "The line is not JSON, or a field is missing or has a wrong type."
    TORN = "torn", "The line has no end: a recorder was killed while it wrote the line."
    REPEAT = "repeat", "Another line reports the same event."
    NO_TOPOLOGY = "no_topology", "The message belongs to no topology."
    UNKNOWN_SOURCE = "unknown_source", "The source of the line is unknown."


class Run(models.Model):
    """The nightly figures of one UTC day: whether they were computed, and from how much.

    While it runs, its process has the lease of the day (analytics/nightly.py).
    """

    day = models.DateField(unique=True)
    state = models.CharField(max_length=10, choices=RunState.choices, default=RunState.REQUESTED)
    steps_done = models.PositiveIntegerField(default=0)
    steps = models.PositiveIntegerField(default=0)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    lines = models.PositiveBigIntegerField(default=0)
    malformed = models.PositiveBigIntegerField(default=0)
    excluded = models.JSONField(default=dict)
    """By ExcludedLine or Reason: lines in no figure, deliveries that are not measured."""
    step_seconds = models.JSONField(default=list)
    """Pairs of a step's name and its seconds, in their order."""
    peak_memory_bytes = models.PositiveBigIntegerField(null=True)
    """Of the process of Spark's driver; None where it was not on this machine, or was killed."""
    spark_version = models.CharField(max_length=40, blank=True)
    output = models.TextField(blank=True)
    """The end of what the jobs printed on standard error."""
    error = models.TextField(blank=True)
    code_version = models.CharField(max_length=40, blank=True)

    class Meta:
        ordering = ("-day",)

    def __str__(self) -> str:
        return f"{self.day}: {self.get_state_display()}"

    @property
    def mark(self) -> str:
        """The style of its state on a page."""
        return MARKS[RunState(self.state)]

    @property
    def is_generated(self) -> bool:
        """Whether the figures are the demo's, computed together with those of other days."""
        return self.error == GENERATED

    @property
    def lines_read(self) -> int | None:
        """The lines that the last run read, where it is done; an earlier run may have read
        others.
        """
        return self.lines or None if self.state == RunState.DONE else None

    @property
    def is_of_unfinished_day(self) -> bool:
        """Whether the figures were computed before the end of the day."""
        at = self.started_at or self.finished_at
        return at is not None and at.astimezone(UTC).date() <= self.day

    @property
    def duration(self) -> timedelta | None:
        """The time from the start to the end of the run, to the second; None while it runs."""
        if self.started_at is None or self.finished_at is None:
            return None
        return timedelta(seconds=round((self.finished_at - self.started_at).total_seconds()))

    @property
    def excluded_lines(self) -> int:
        return sum(self.excluded.get(reason, 0) for reason in ExcludedLine.values)

    @property
    def slowest_step(self) -> tuple[str, float] | None:
        steps = (step for step in self.step_seconds if not step[0].endswith(CONCURRENT))
        return max(steps, key=itemgetter(1), default=None)

    @property
    def is_at_work(self) -> bool:
        return self.state in (RunState.REQUESTED, RunState.RUNNING)
