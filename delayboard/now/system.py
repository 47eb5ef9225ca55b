"""The background tasks of the worker, as the pages System and Now show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Q

from delayboard.models import BackgroundTask
from topology.content.text import format_bytes
from topology.delays import format_ms
from topology.graph.live_values import make_version
from topology.models import Broker

# What a name does not say by itself. The ends "bytes", "seconds", "ms" and "at" are units.
_WORDS = {
    "drained": "events written",
    "passed": "forwarded",
    "looped": "delayed again",
    "returned": "not confirmed",
    "late_p50_ms": "median lateness ms",
    "late_p99_ms": "99th percentile ms",
    "late_last_ms": "last ms",
    # It is measured with each cleaning only, for it reads every row.
    "parked_messages_bytes": "in parked messages at that time bytes",
}


@dataclass(frozen=True)
class TaskLine:
    """A background task and what it reports of itself."""

    task: BackgroundTask

    @property
    def key(self) -> str:
        return f"task/{self.task.key}"

    @property
    def mark(self) -> str:
        return "failed" if self.task.is_failing or self.task.is_late else "done"

    @property
    def status(self) -> str:
        if self.task.is_failing:
            return "Failing"
        return "No heartbeat" if self.task.is_late else "Running"

    @property
    def details(self) -> str:
        return describe_details(self.task.details)

    @property
    def cells(self) -> dict[str, str]:
        return {f"{self.key}/status": self.status, f"{self.key}/details": self.details}


def background_tasks_of(brokers: Sequence[Broker]) -> tuple[BackgroundTask, ...]:
    """The tasks of these brokers, and those of none."""
    return tuple(BackgroundTask.objects.filter(Q(broker__in=brokers) | Q(broker=None)))


def has_no_worker(tasks: Sequence[BackgroundTask]) -> bool:
    return all(task.is_late for task in tasks)


def describe_tasks(tasks: Sequence[BackgroundTask]) -> str:
    """All tasks in one sentence."""
    if has_no_worker(tasks):
        return "The worker is not running."
    bad = sum(task.is_late or task.is_failing for task in tasks)
    if bad:
        return f"{bad} of {len(tasks)} background tasks need{'s' if bad == 1 else ''} attention."
    if len(tasks) == 1:
        return "1 background task is running."
    return f"{len(tasks)} background tasks are running."


def make_tasks_version(lines: Sequence[TaskLine]) -> str:
    """Changes when the page System shows other tasks or errors."""
    return make_version(*((one.key, one.task.last_error) for one in lines))


def describe_details(details: Mapping[str, Any]) -> str:
    """What a task reports of itself, as a person reads it."""
    return ", ".join(
        _describe(_WORDS.get(name, name.replace("_", " ")), value)
        for name, value in details.items()
        if value not in (None, "") and not isinstance(value, dict)
    )


def _describe(words: str, value: Any) -> str:
    if isinstance(value, bool):
        return words if value else f"not {words}"
    if words.endswith(" bytes"):
        return f"{format_bytes(value)} {words.removesuffix(' bytes')}"
    if words.endswith(" seconds"):
        return f"{format_ms(1000 * value)} {words.removesuffix(' seconds')}"
    if words.endswith(" ms"):
        return f"{words.removesuffix(' ms')} {format_ms(value)}"
    if words.endswith(" at"):
        return f"{words.removesuffix(' at')} at {str(value)[11:19]}"
    return f"{words} {value}"
