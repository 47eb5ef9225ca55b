from __future__ import annotations

from django.db import models


class RunState(models.TextChoices):
    WANTED = "wanted", "waiting for the worker"
    RUNNING = "running", "running"
    DONE = "done", "done"
    NO_DATA = "no_data", "no data"
    FAILED = "failed", "failed"


MARKS = {
    RunState.WANTED: "state-busy",
    RunState.RUNNING: "state-busy",
    RunState.DONE: "state-ok",
    RunState.NO_DATA: "state-off",
    RunState.FAILED: "state-error",
}


class Run(models.Model):
    """The nightly figures of one UTC day: whether they were computed, and from how much.

    While it runs, `owner` holds the lease until `lease_until`; who finds it expired may
    take over.
    """

    day = models.DateField(unique=True)
    state = models.CharField(max_length=10, choices=RunState.choices, default=RunState.WANTED)
    owner = models.CharField(max_length=32, blank=True)
    lease_until = models.DateTimeField(null=True)
    steps_done = models.PositiveIntegerField(default=0)
    steps = models.PositiveIntegerField(default=0)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    lines = models.PositiveBigIntegerField(default=0)
    malformed = models.PositiveBigIntegerField(default=0)
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
    def is_at_work(self) -> bool:
        return self.state in (RunState.WANTED, RunState.RUNNING)
