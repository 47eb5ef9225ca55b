"""What Delayboard works with (brokers, the worker, the disk of the event log), and its troubles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from analytics.disk import DiskSpace
from analytics.models import LogHost, Run
from analytics.models.run import RunState
from delayboard.models import AlertChannel, AlertMessage, BackgroundTask
from delayboard.models.background_task import LATE
from delayboard.now.problems import Link, Problem, ProblemKind, Severity
from delayboard.now.throughput import BEHIND, find_lag
from topology.broker.errors import alarm_sentence
from topology.content.text import count_of, format_bytes
from topology.database.clock import describe_skew
from topology.delays import format_ms, format_span
from topology.graph.live_values import make_version
from topology.models import Broker, Work, WorkState
from topology.models.work import TASK
from topology.operations.connect import describe_silent, list_certificates
from topology.snapshot import Snapshot
from topology.snapshots import Latest

Known = Mapping[Broker, Latest]
# Time after which an hour that was not moved is reported: it is moved a few minutes after its end.
UNSENT_FOR = timedelta(hours=2)
# Days whose failed nightly runs are reported.
DAYS_SHOWN = 7
SYSTEM = Link("View background tasks", "system")
RETENTION = Link("View data retention", "retention")
# Words for names that do not explain themselves. The ends "bytes", "seconds", "ms" and "at" are
# units.
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


@dataclass(frozen=True)
class HostLine:
    """A machine that records, what it records, and what others cannot read of its log."""

    host: LogHost
    records: tuple[str, ...]

    @property
    def status(self) -> str:
        if self.host.has_ended:
            return "Stopped"
        return "No heartbeat" if self.host.is_silent else "Running"

    @property
    def mark(self) -> str:
        return {"Running": "done", "Stopped": ""}.get(self.status, "failed")

    @property
    def unread(self) -> str:
        """What is not in the list of scheduled messages."""
        known = format_bytes(self.host.unread_bytes) if self.host.unread_bytes else ""
        if self.host.is_silent:
            return f"{known or 'none'} at the last heartbeat, unknown since"
        return known or "none"

    @property
    def unsent(self) -> str:
        """What nightly runs of other hosts cannot read."""
        if not self.host.is_sending:
            return "all: LOG_URL is not set"
        if self.host.unsent_since is None:
            return "none"
        since = timezone.localtime(self.host.unsent_since)
        return f"{format_bytes(self.host.unsent_bytes)} since {since:%Y-%m-%d %H:%M}"


def list_hosts(tasks: Sequence[BackgroundTask]) -> list[HostLine]:
    """The hosts and, of these tasks, the recorders that each has; none of a single machine."""
    hosts = list(LogHost.objects.all())
    if len(hosts) < 2 and not settings.SHARED_LOG_URL:
        return []
    leased = Work.objects.filter(kind=TASK, state=WorkState.RUNNING)
    owners = dict(leased.values_list("subject", "owner"))
    names = defaultdict(list)
    for task in tasks:
        if task.key.startswith(("record:", "firehose:")) and task.pk in owners:
            names[owners[task.pk].partition("/")[0]].append(task.name)
    return [HostLine(host, tuple(names[host.name])) for host in hosts]


def find_host_problems(now: datetime) -> Iterator[Problem]:
    """Problems of several hosts: logs that cannot be read, and what the hosts do not have in
    common.
    """
    hosts = list(LogHost.objects.all())
    for host in hosts:
        wrong = (
            ""
            if host.has_ended
            else describe_skew(host.name, timedelta(milliseconds=host.clock_ms))
        )
        if wrong:
            yield Problem("error", ProblemKind.TASKS, wrong, SYSTEM, f"host/{host.name}/clock")
    if len(hosts) < 2:
        return
    for host in hosts:
        key = f"host/{host.name}"
        if host.is_silent:
            since = timezone.localtime(host.seen_at)
            sentence = (
                f"The worker on {host.name} has sent no heartbeat since {since:%Y-%m-%d %H:%M}. "
                "What it recorded last may be missing in the lists until it runs again."
            )
            yield Problem("error", ProblemKind.TASKS, sentence, SYSTEM, key)
        elif host.keys != settings.KEYS_FINGERPRINT:
            sentence = (
                f"The worker on {host.name} has other keys than this site. Set the same SECRET_KEY "
                "and CREDENTIAL_KEYS on all hosts."
            )
            yield Problem("error", ProblemKind.TASKS, sentence, SYSTEM, f"{key}/keys")
        if not host.is_sending:
            sentence = (
                f"LOG_URL is not set on {host.name}, so nightly runs on other hosts do not read "
                "what it records. Set the same LOG_URL on all hosts."
            )
            yield Problem("warning", ProblemKind.TASKS, sentence, SYSTEM, f"{key}/url")
        elif host.unsent_since and now - host.unsent_since > UNSENT_FOR:
            since = timezone.localtime(host.unsent_since)
            sentence = (
                f"{host.name} has not moved its event log since {since:%Y-%m-%d %H:%M} to LOG_URL, "
                "so nightly reports miss what it recorded."
            )
            yield Problem("warning", ProblemKind.TASKS, sentence, SYSTEM, f"{key}/unsent")


def background_tasks_of(brokers: Sequence[Broker]) -> tuple[BackgroundTask, ...]:
    """The tasks of these brokers, and those of none."""
    return tuple(BackgroundTask.objects.filter(Q(broker__in=brokers) | Q(broker=None)))


def describe_tasks(tasks: Sequence[BackgroundTask]) -> str:
    if has_no_worker(tasks):
        return "The worker is not running."
    bad = sum(task.is_late or task.is_failing for task in tasks)
    if bad:
        return f"{bad} of {len(tasks)} background tasks need{'s' if bad == 1 else ''} attention."
    if len(tasks) == 1:
        return "1 background task is running."
    return f"{len(tasks)} background tasks are running."


def has_no_worker(tasks: Sequence[BackgroundTask]) -> bool:
    return all(task.is_late for task in tasks)


def make_tasks_version(lines: Sequence[TaskLine], hosts: Sequence[HostLine] = ()) -> str:
    """Changes when the page System shows something else."""
    tasks = ((one.key, one.status, one.details, one.task.last_error) for one in lines)
    machines = ((one.host.name, one.status, one.records, one.unread, one.unsent) for one in hosts)
    return make_version(*tasks, *machines)


def describe_details(details: Mapping[str, Any]) -> str:
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
        yield Problem("error", ProblemKind.DISK, sentence, RETENTION)
    is_dead = has_no_worker(tasks)
    if is_dead:
        sentence = "The worker is not running, so Delayboard records, replays and reports nothing."
        yield Problem("error", ProblemKind.TASKS, sentence, SYSTEM)
    for broker, one in known.items():
        link = Link("View broker", "topology:broker", (broker.slug,))
        if one.trouble:
            sentence = f"{broker.name}: {one.trouble}"
            key, of, kind = f"broker/{broker.pk}", broker.pk, ProblemKind.BROKER
            yield Problem("error", kind, sentence, link, key, broker=of, error=one.trouble)
        if one.snapshot and not one.trouble:
            yield from _find_lost_nodes(broker, one.snapshot, link)
        if one.snapshot and one.snapshot.alarms:
            sentence = f"{broker.name}: {alarm_sentence(one.snapshot.alarms)}"
            key, of = f"alarms/{broker.pk}", broker.pk
            yield Problem("error", ProblemKind.BROKER, sentence, link, key, broker=of)
    if not is_dead:
        yield from _task_failures(
            tasks, {broker.pk for broker, one in known.items() if one.trouble}
        )


def _find_lost_nodes(broker: Broker, snapshot: Snapshot, link: Link) -> Iterator[Problem]:
    """Nodes of the cluster that do not run, or that are on another side of a partition."""
    if snapshot.partitioned:
        sentence = (
            f"{broker.name}: RabbitMQ reports a network partition between "
            f"{', '.join(sorted(snapshot.partitioned))}. Check the network between the nodes, then "
            "restart the nodes of the smaller side."
        )
        key, of = f"partition/{broker.pk}", broker.pk
        yield Problem("error", ProblemKind.BROKER, sentence, link, key, broker=of)
    if snapshot.down:
        names = ", ".join(sorted(snapshot.down))
        count = f"{len(snapshot.down)} of {len(snapshot.nodes)} nodes"
        verb = "is" if len(snapshot.down) == 1 else "are"
        sentence = (
            f"{broker.name}: {count} {verb} down ({names}). Start the node, or check the network "
            "between the nodes."
        )
        key, of = f"nodes/{broker.pk}", broker.pk
        yield Problem("warning", ProblemKind.BROKER, sentence, link, key, broker=of)


def find_silent_addresses(brokers: Sequence[Broker]) -> Iterator[Problem]:
    """Addresses of clusters that do not answer the worker."""
    for broker in Broker.objects.filter(pk__in=[one.pk for one in brokers]).exclude(silent={}):
        link = Link("View broker", "topology:broker", (broker.slug,))
        for number, sentence in enumerate(describe_silent(broker)):
            key = f"addresses/{broker.pk}/{number}"
            yield Problem("warning", ProblemKind.BROKER, sentence, link, key, broker=broker.pk)


def find_ending_certificates(brokers: Sequence[Broker], now: datetime) -> Iterator[Problem]:
    """Certificates stored with brokers that expire within 30 days."""
    for broker in brokers:
        link = Link("Edit broker", "topology:broker_edit", (broker.slug,))
        for one in list_certificates(broker, now):
            if not one.is_ending:
                continue
            when = "expired" if one.is_expired else "expires"
            sentence = (
                f"{broker.name}: the {one.label} {one.subject} {when} on "
                f"{one.expires_at:%Y-%m-%d}. Enter a new certificate."
            )
            key = f"certificate/{broker.pk}/{one.label}/{one.subject}"
            severity: Severity = "error" if one.is_expired else "warning"
            yield Problem(severity, ProblemKind.BROKER, sentence, link, key, broker=broker.pk)


def _task_failures(tasks: Sequence[BackgroundTask], silent: set[int]) -> Iterator[Problem]:
    """One for each reason, however many tasks fail for it; none of silent brokers."""
    of_error = defaultdict(list)
    for task in tasks:
        if task.is_failing and task.broker_id not in silent:
            of_error[task.last_error].append(task)
    for error, (first, *rest) in of_error.items():
        failing = f"{first.name} and {len(rest)} more fail" if rest else f"{first.name} fails"
        # The text of an error may change with each attempt.
        sentence, key = f"{failing}: {error}", f"failing/{first.key}"
        of, kind = first.broker_id, ProblemKind.TASKS
        yield Problem("error", kind, sentence, SYSTEM, key, broker=of, error=error)
    for task in tasks:
        if task.is_late and not task.is_failing:
            sentence = f"{task.name} is late: no heartbeat for more than {format_span(LATE)}."
            key, kind = f"late/{task.key}", ProblemKind.TASKS
            yield Problem("error", kind, sentence, SYSTEM, key, broker=task.broker_id)


def find_delays(
    known: Known, tasks: Sequence[BackgroundTask], disk: DiskSpace | None
) -> Iterator[Problem]:
    """What works, and is slow or will not work for long."""
    for broker, one in known.items():
        if one.reading_since:
            link = Link("View broker", "topology:broker", (broker.slug,))
            sentence = f"{broker.name}: {one.error}"
            key, of = f"reading/{broker.pk}", broker.pk
            yield Problem("warning", ProblemKind.BROKER, sentence, link, key, broker=of)
    if disk and disk.is_short and not disk.is_full:
        sentence = (
            f"The disk of the event log is nearly full: {format_bytes(disk.free)} of "
            f"{format_bytes(disk.total)} are free. Delayboard records nothing while the disk is "
            "full."
        )
        yield Problem("warning", ProblemKind.DISK, sentence, RETENTION, "disk")
    for task in tasks:
        behind = find_lag(task)
        if behind > BEHIND and not task.is_late:
            words = format_span(timedelta(seconds=int(behind.total_seconds())))
            sentence = f"{task.name} is {words} behind, so its data is that old."
            key, kind = f"behind/{task.key}", ProblemKind.BEHIND
            yield Problem("warning", kind, sentence, SYSTEM, key, broker=task.broker_id)


def find_failed_runs(today: date) -> Iterator[Problem]:
    """The days of the last week whose nightly run failed."""
    first = today - timedelta(days=DAYS_SHOWN)
    failed = Run.objects.filter(state=RunState.FAILED, day__gte=first)
    for day in failed.values_list("day", flat=True):
        query = {"from": day.isoformat(), "to": day.isoformat()}
        link = Link("View report", "analytics:reports", query=query)
        sentence = f"The nightly run of {day} failed, so its report has no new figures."
        yield Problem("warning", ProblemKind.TASKS, sentence, link, f"run/{day}")


def find_unsent() -> Iterator[Problem]:
    """Whether alerts or nightly reports were not sent; of all brokers, as they are."""
    failed, signed = AlertMessage.failed(), Q(receiver__channel=AlertChannel.SIGNED)
    if number := failed.exclude(signed).count():
        sentence = f"{count_of(number, 'alert', 'was')} not sent."
        link = Link("View alerts", "alerts")
        yield Problem("warning", ProblemKind.DELIVERY, sentence, link, "alerts")
    if number := failed.filter(signed).count():
        sentence = f"{count_of(number, 'webhook event', 'was')} not sent."
        link = Link("View webhooks", "webhooks")
        yield Problem("warning", ProblemKind.DELIVERY, sentence, link, "webhooks")
