"""What Now shows: brokers, background tasks, waiting messages, throughput and troubles."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q

from analytics.disk import DiskSpace, read_disk_space
from analytics.scheduled.queries import listing
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.counts import Scope
from delayboard.models import BackgroundTask, BatchState, Publication, ReplayBatch
from delayboard.models.background_task import LATE
from delayboard.models.replay import ENDED_BATCH
from delayboard.now.problems import (
    Trouble,
    find_drifted,
    find_losses,
    find_overdue,
    find_unroutable,
)
from delayboard.now.throughput import BEHIND, FlowLine, find_lag, flow_lines
from delayboard.templatetags.delayboard import bytesize
from topology import latest
from topology.broker.errors import alarm_sentence
from topology.definitions import is_tap
from topology.delays import in_words
from topology.findings.counts import Count, make_counts
from topology.latest import Latest
from topology.models import Broker, State, Topology
from topology.operations.finding_rows import count_open

# As many topologies as a screen holds; the others are behind a fold.
FLOWS = 12
# What is known of a broker is not older than this, when it answers.
BROKER_AGE = timedelta(seconds=5)
# Replays under way, and others.
REPLAYS = 10
LAST_REPLAYS = 5
# Nothing happens to these until somebody does something.
RESTING = (BatchState.DRAFT, *ENDED_BATCH)


@dataclass(frozen=True)
class BrokerLine:
    """A broker, its last snapshot, and how many messages lie in it; None when unknown.

    `findings` are those that the worker last saw, without muted ones; None before it checked.
    """

    broker: Broker
    latest: Latest
    messages: int | None
    topologies: int
    findings: list[Count] | None


@dataclass(frozen=True)
class Waits:
    """How many messages wait, how many of them should have left, how many of those are stuck."""

    waiting: int
    overdue: int
    stuck: int = 0


@dataclass(frozen=True)
class Overview:
    """`troubles` need somebody now, stuck messages first; `warnings` soon."""

    brokers: tuple[BrokerLine, ...]
    background_tasks: tuple[BackgroundTask, ...]
    troubles: tuple[Trouble, ...]
    warnings: tuple[Trouble, ...]
    waits: Waits
    flows: tuple[FlowLine, ...]
    publications: tuple[Publication, ...]
    batches: tuple[ReplayBatch, ...]

    @property
    def has_open_batches(self) -> bool:
        return any(batch.state not in RESTING for batch in self.batches)

    @property
    def version(self) -> str:
        """Changes when the page shows more that is new than its live texts. Of this process."""
        said = tuple((one.severity, one.sentence) for one in (*self.troubles, *self.warnings))
        lines = tuple(
            (one.broker.pk, one.latest.snapshot and one.latest.snapshot.taken_at, one.topologies)
            for one in self.brokers
        )
        tasks = tuple((one.key, one.beat_at, one.is_late) for one in self.background_tasks)
        drawings = tuple((one.key, one.entered_area, one.left_line) for one in self.flows)
        batches = tuple((one.pk, one.state, one.pending) for one in self.batches)
        published = tuple((one.pk, one.outcome) for one in self.publications)
        shown = (said, lines, tasks, drawings, batches, published)
        return str(hash(shown))

    @property
    def first_flows(self) -> tuple[FlowLine, ...]:
        return self.flows[:FLOWS]

    @property
    def other_flows(self) -> tuple[FlowLine, ...]:
        return self.flows[FLOWS:]

    @property
    def is_incomplete(self) -> bool:
        """Whether messages may have entered or left that nobody counted."""
        return any(line.unknown for line in self.flows)


def overview(brokers: Sequence[Broker], now: datetime, max_age: timedelta) -> Overview:
    """Everything about these brokers that the first page shows."""
    known = latest.fresh_all(brokers, max_age)
    findings = count_open(brokers, now)
    lines = tuple(
        _line(broker, one, make_counts(findings.get(broker.pk, {})))
        for broker, one in zip(brokers, known, strict=True)
    )
    background_tasks = background_tasks_of(brokers)
    disk = read_disk_space(settings.EVENT_LOG)
    flows = flow_lines(brokers, background_tasks, now)
    scope = counts.scope(brokers, now)
    found = [
        *find_unroutable(brokers),
        *(Trouble("error", sentence) for sentence in _troubles(lines, background_tasks, disk)),
        *find_drifted(brokers),
        *find_overdue(scope, [one.topology for one in flows if not one.unknown]),
        *find_losses([(one.broker, one.findings or []) for one in lines]),
        *(
            Trouble("warning", one)
            for one in (*_readings(lines), *_warnings(background_tasks, disk))
        ),
    ]
    return Overview(
        brokers=lines,
        background_tasks=background_tasks,
        troubles=tuple(one for one in found if one.severity == "error"),
        warnings=tuple(one for one in found if one.severity == "warning"),
        waits=_waits(scope),
        flows=tuple(flows),
        publications=tuple(Publication.objects.filter(broker__in=brokers)[:5]),
        batches=tuple(_batches(brokers)),
    )


def background_tasks_of(brokers: Sequence[Broker]) -> tuple[BackgroundTask, ...]:
    """The tasks of these brokers, and those of none."""
    return tuple(BackgroundTask.objects.filter(Q(broker__in=brokers) | Q(broker=None)))


def _batches(brokers: Sequence[Broker]) -> list[ReplayBatch]:
    """Those under way, the newest first, then the last others."""
    rows = ReplayBatch.objects.filter(broker__in=brokers)
    rows = rows.select_related("broker", "work", "created_by", "group")
    running = list(rows.exclude(state__in=RESTING)[:REPLAYS])
    return running + list(rows.filter(state__in=RESTING)[:LAST_REPLAYS])


def _waits(scope: Scope) -> Waits:
    overdue, waiting = counts.before(scope, [scope.now - listing.OVERDUE_AFTER, None])
    return Waits(waiting, overdue, counts.count_stuck(scope))


def _line(broker: Broker, known: Latest, findings: list[Count]) -> BrokerLine:
    depths: list[int | None] = [None]
    if known.snapshot:
        numbers = known.snapshot.numbers.items()
        depths = [one.messages for name, one in numbers if not is_tap(name)]
    messages = None if None in depths else sum(depth or 0 for depth in depths)
    topologies = Topology.objects.filter(broker=broker, state=State.APPLIED).count()
    is_checked = broker.findings_checked_at is not None
    return BrokerLine(broker, known, messages, topologies, findings if is_checked else None)


def _troubles(
    lines: Sequence[BrokerLine], background_tasks: Sequence[BackgroundTask], disk: DiskSpace | None
) -> list[str]:
    sentences = []
    is_dead = not background_tasks or all(
        background_task.is_late for background_task in background_tasks
    )
    if disk and disk.is_full:
        sentences.append(
            f"The disk of the event log is full ({settings.EVENT_LOG}), so Delayboard records "
            "nothing. Taps store new copies until they are full. Recording resumes automatically "
            "when the disk has space."
        )
    if is_dead:
        sentences.append(
            "The worker is not running, so Delayboard records, replays and reports nothing."
        )
    sentences += [
        f"{line.broker.name}: {line.latest.trouble}" for line in lines if line.latest.trouble
    ]
    for line in lines:
        if line.latest.snapshot and line.latest.snapshot.alarms:
            sentences.append(f"{line.broker.name}: {alarm_sentence(line.latest.snapshot.alarms)}")
    if is_dead:
        return sentences
    silent = {line.broker.pk for line in lines if line.latest.trouble}
    sentences += _failures(
        [one for one in background_tasks if one.is_failing and one.broker_id not in silent]
    )
    late = [
        background_task
        for background_task in background_tasks
        if background_task.is_late and not background_task.is_failing
    ]
    sentences.extend(
        f"{background_task.name} is late: no heartbeat for more than {in_words(LATE)}."
        for background_task in late
    )
    return sentences


def _failures(failing: Sequence[BackgroundTask]) -> list[str]:
    """One sentence for each reason, however many tasks fail for it."""
    names = defaultdict(list)
    for background_task in failing:
        names[background_task.last_error].append(background_task.name)
    return [
        f"{found[0]}{f' and {len(found) - 1} more fail' if found[1:] else ' fails'}: {error}"
        for error, found in names.items()
    ]


def _readings(lines: Sequence[BrokerLine]) -> list[str]:
    return [
        f"{line.broker.name}: {line.latest.error}" for line in lines if line.latest.reading_since
    ]


def _warnings(background_tasks: Sequence[BackgroundTask], disk: DiskSpace | None) -> list[str]:
    sentences = []
    if disk and disk.is_short and not disk.is_full:
        sentences.append(
            f"The disk of the event log is nearly full: {bytesize(disk.free)} of "
            f"{bytesize(disk.total)} are free. Delayboard records nothing while the disk is full."
        )
    for task in background_tasks:
        behind = find_lag(task)
        if behind > BEHIND and not task.is_late:
            sentences.append(
                f"{task.name} is {in_words(_whole(behind))} behind, so its data is that old."
            )
    return sentences


def _whole(span: timedelta) -> timedelta:
    return timedelta(seconds=int(span.total_seconds()))
