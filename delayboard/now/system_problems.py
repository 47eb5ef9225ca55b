"""Troubles of what Delayboard works with: brokers, the worker, the disk of the event log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta

from django.conf import settings

from analytics.disk import DiskSpace
from analytics.models import Delivery, Run
from analytics.models.run import RunState
from delayboard.models import AlertMessage, BackgroundTask
from delayboard.models.background_task import LATE
from delayboard.now.problems import Link, Problem, ProblemKind
from delayboard.now.system import has_no_worker
from delayboard.now.throughput import BEHIND, find_lag
from topology.broker.errors import alarm_sentence
from topology.content.text import count_of, format_bytes
from topology.delays import format_span
from topology.models import Broker
from topology.snapshots import Latest

Known = Mapping[Broker, Latest]
DAYS_SHOWN = 7
SYSTEM = Link("View background tasks", "system")


def find_outages(
    known: Known, tasks: Sequence[BackgroundTask], disk: DiskSpace | None
) -> Iterator[Problem]:
    """What does not work now."""
    if disk and disk.is_full:
        sentence = (
            f"The disk of the event log is full ({settings.EVENT_LOG}), so Delayboard records "
            "nothing. Taps store new copies until they are full. Recording resumes automatically "
            "when the disk has space."
        )
        link = Link("View data retention", "retention")
        yield Problem("error", sentence, link, kind=ProblemKind.DISK)
    is_dead = has_no_worker(tasks)
    if is_dead:
        sentence = "The worker is not running, so Delayboard records, replays and reports nothing."
        yield Problem("error", sentence, SYSTEM, kind=ProblemKind.TASKS)
    for broker, one in known.items():
        link = Link("View broker", "topology:broker", (broker.slug,))
        if one.trouble:
            sentence, key = f"{broker.name}: {one.trouble}", f"broker/{broker.pk}"
            yield Problem("error", sentence, link, key, kind=ProblemKind.BROKER)
        if one.snapshot and one.snapshot.alarms:
            sentence = f"{broker.name}: {alarm_sentence(one.snapshot.alarms)}"
            key = f"alarms/{broker.pk}"
            yield Problem("error", sentence, link, key, kind=ProblemKind.BROKER)
    if not is_dead:
        silent = {broker.pk for broker, one in known.items() if one.trouble}
        yield from _task_failures(tasks, silent)


def _task_failures(tasks: Sequence[BackgroundTask], silent: set[int]) -> Iterator[Problem]:
    """One for each reason, however many tasks fail for it; none of silent brokers."""
    of_error = defaultdict(list)
    for task in tasks:
        if task.is_failing and task.broker_id not in silent:
            of_error[task.last_error].append(task)
    for error, (first, *rest) in of_error.items():
        failing = f"{first.name} and {len(rest)} more fail" if rest else f"{first.name} fails"
        # The text of an error may change with each attempt.
        key = f"failing/{first.key}"
        yield Problem("error", f"{failing}: {error}", SYSTEM, key, kind=ProblemKind.TASKS)
    for task in tasks:
        if task.is_late and not task.is_failing:
            sentence = f"{task.name} is late: no heartbeat for more than {format_span(LATE)}."
            yield Problem("error", sentence, SYSTEM, f"late/{task.key}", kind=ProblemKind.TASKS)


def find_delays(
    known: Known, tasks: Sequence[BackgroundTask], disk: DiskSpace | None
) -> Iterator[Problem]:
    """What works, and is slow or will not work for long."""
    for broker, one in known.items():
        if one.reading_since:
            link = Link("View broker", "topology:broker", (broker.slug,))
            sentence, key = f"{broker.name}: {one.error}", f"reading/{broker.pk}"
            yield Problem("warning", sentence, link, key, kind=ProblemKind.BROKER)
    if disk and disk.is_short and not disk.is_full:
        sentence = (
            f"The disk of the event log is nearly full: {format_bytes(disk.free)} of "
            f"{format_bytes(disk.total)} are free. Delayboard records nothing while the disk is "
            "full."
        )
        link = Link("View data retention", "retention")
        yield Problem("warning", sentence, link, "disk", kind=ProblemKind.DISK)
    for task in tasks:
        behind = find_lag(task)
        if behind > BEHIND and not task.is_late:
            words = format_span(timedelta(seconds=int(behind.total_seconds())))
            sentence = f"{task.name} is {words} behind, so its data is that old."
            key = f"behind/{task.key}"
            yield Problem("warning", sentence, SYSTEM, key, kind=ProblemKind.BEHIND)


def find_failed_runs(today: date) -> Iterator[Problem]:
    """The days of the last week whose nightly run failed."""
    first = today - timedelta(days=DAYS_SHOWN)
    failed = Run.objects.filter(state=RunState.FAILED, day__gte=first)
    for day in failed.values_list("day", flat=True):
        query = {"from": day.isoformat(), "to": day.isoformat()}
        link = Link("View report", "analytics:reports", query=query)
        sentence = f"The nightly run of {day} failed, so its report has no new figures."
        yield Problem("warning", sentence, link, f"run/{day}", kind=ProblemKind.TASKS)


def find_unsent() -> Iterator[Problem]:
    """Whether nightly reports or alerts were not sent; of all brokers, as they are."""
    number = Delivery.failed().count()
    if number:
        reports = count_of(number, "nightly report", "was")
        link = Link("View reports", "analytics:reports")
        sentence, kind = f"{reports} not sent.", ProblemKind.DELIVERY
        yield Problem("warning", sentence, link, "reports", kind=kind)
    number = AlertMessage.failed().count()
    if number:
        alerts = count_of(number, "alert", "was")
        sentence, kind = f"{alerts} not sent.", ProblemKind.DELIVERY
        yield Problem("warning", sentence, Link("View alerts", "alerts"), "alerts", kind=kind)
