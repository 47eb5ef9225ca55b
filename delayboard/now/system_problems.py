"""Troubles of what Delayboard works with: brokers, the worker, the disk of the event log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from django.conf import settings

from analytics.disk import DiskSpace
from analytics.models import Delivery
from delayboard.models import BackgroundTask
from delayboard.models.background_task import LATE
from delayboard.now.problems import Link, Trouble
from delayboard.now.system import has_no_worker
from delayboard.now.throughput import BEHIND, find_lag
from delayboard.templatetags.delayboard import bytesize
from topology.broker.errors import alarm_sentence
from topology.delays import in_words
from topology.latest import Latest
from topology.models import Broker

Known = Mapping[Broker, Latest]
SYSTEM = Link("View background tasks", "system")


def find_outages(
    known: Known, tasks: Sequence[BackgroundTask], disk: DiskSpace | None
) -> Iterator[Trouble]:
    """What does not work now."""
    if disk and disk.is_full:
        sentence = (
            f"The disk of the event log is full ({settings.EVENT_LOG}), so Delayboard records "
            "nothing. Taps store new copies until they are full. Recording resumes automatically "
            "when the disk has space."
        )
        yield Trouble("error", sentence, Link("View data retention", "retention"))
    is_dead = has_no_worker(tasks)
    if is_dead:
        sentence = "The worker is not running, so Delayboard records, replays and reports nothing."
        yield Trouble("error", sentence, SYSTEM)
    for broker, one in known.items():
        link = Link("View broker", "topology:broker", (broker.slug,))
        if one.trouble:
            yield Trouble("error", f"{broker.name}: {one.trouble}", link, f"broker/{broker.pk}")
        if one.snapshot and one.snapshot.alarms:
            sentence = f"{broker.name}: {alarm_sentence(one.snapshot.alarms)}"
            yield Trouble("error", sentence, link, f"alarms/{broker.pk}")
    if not is_dead:
        silent = {broker.pk for broker, one in known.items() if one.trouble}
        yield from _task_failures(tasks, silent)


def _task_failures(tasks: Sequence[BackgroundTask], silent: set[int]) -> Iterator[Trouble]:
    """One for each reason, however many tasks fail for it; none of silent brokers."""
    names = defaultdict(list)
    for task in tasks:
        if task.is_failing and task.broker_id not in silent:
            names[task.last_error].append(task.name)
    for error, found in names.items():
        failing = f"{found[0]} and {len(found) - 1} more fail" if found[1:] else f"{found[0]} fails"
        yield Trouble("error", f"{failing}: {error}", SYSTEM)
    for task in tasks:
        if task.is_late and not task.is_failing:
            sentence = f"{task.name} is late: no heartbeat for more than {in_words(LATE)}."
            yield Trouble("error", sentence, SYSTEM)


def find_delays(
    known: Known, tasks: Sequence[BackgroundTask], disk: DiskSpace | None
) -> Iterator[Trouble]:
    """What works, and is slow or will not work for long."""
    for broker, one in known.items():
        if one.reading_since:
            link = Link("View broker", "topology:broker", (broker.slug,))
            yield Trouble("warning", f"{broker.name}: {one.error}", link, f"reading/{broker.pk}")
    if disk and disk.is_short and not disk.is_full:
        sentence = (
            f"The disk of the event log is nearly full: {bytesize(disk.free)} of "
            f"{bytesize(disk.total)} are free. Delayboard records nothing while the disk is full."
        )
        yield Trouble("warning", sentence, Link("View data retention", "retention"), "disk")
    for task in tasks:
        behind = find_lag(task)
        if behind > BEHIND and not task.is_late:
            words = in_words(timedelta(seconds=int(behind.total_seconds())))
            sentence = f"{task.name} is {words} behind, so its data is that old."
            yield Trouble("warning", sentence, SYSTEM, f"behind/{task.key}")


def find_unsent_reports() -> Iterator[Trouble]:
    """Whether nightly reports were not sent; of all brokers, as the reports are."""
    number = Delivery.failed().count()
    if number:
        reports = "1 nightly report was" if number == 1 else f"{number} nightly reports were"
        link = Link("View reports", "analytics:reports")
        yield Trouble("warning", f"{reports} not sent.", link, "reports")
