"""What Now shows: troubles, counters, a line for each topology."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property

from django.conf import settings

from analytics.disk import read_disk_space
from analytics.scheduled.summaries import counts
from delayboard.models import Acknowledgement, AlertProblem, BackgroundTask
from delayboard.now import counters, problems
from delayboard.now.acknowledge import split
from delayboard.now.counters import Counter, lateness_counter
from delayboard.now.lateness import read_lateness
from delayboard.now.problems import Problem, find_burning, find_growing
from delayboard.now.system import (
    background_tasks_of,
    describe_tasks,
    find_delays,
    find_ending_certificates,
    find_failed_runs,
    find_host_problems,
    find_outages,
    find_silent_addresses,
    find_unsent,
)
from delayboard.now.throughput import flow_lines
from delayboard.now.topology_lines import (
    TopologyLine,
    count_other_parked,
    count_waiting,
    draw_days,
    make_lines,
    read_queues,
)
from topology import snapshots
from topology.content.text import count_of
from topology.findings.hit import make_counts
from topology.graph.live_values import make_version
from topology.models import AuditEntry, Broker, Topology
from topology.operations.finding_rows import count_open

# Topologies that are drawn in full; the others are behind a fold, without their charts.
LINES = 30
# Counters that are large.
MAIN = ("stuck", "overdue", "due_within_hour", "dead")
# Actions that show something and change nothing.
VIEWS = (
    *("body downloaded", "body viewed", "connection tested", "message copied"),
    *("parked message read", "parked messages exported", "parked messages listed"),
    *("queue peeked", "queues checked for failures", "queues searched"),
)
# Age up to which the last answer of a broker counts, when it answers.
BROKER_AGE = timedelta(seconds=5)
# Ids of brokers -> the board that the feed computed last: all open pages are loaded at once.
_newest: dict[tuple[int, ...], Overview] = {}
# Ids of brokers -> the versions until then, so that no page gets an older one than it knows of.
_versions: dict[tuple[int, ...], deque[str]] = defaultdict(lambda: deque(maxlen=60))
# Age up to which a board is shared by pages; with a slow machine the feed reads every few seconds.
SHARED_AGE = timedelta(seconds=30)


@dataclass(frozen=True)
class Overview:
    """`troubles` need somebody now, stuck messages first; `warnings` soon.

    `acknowledged` problems last too, and somebody said that they need nobody for a time.
    `last_action` is the newest change in the audit log of these brokers. `other_parked` messages
    are counted in no line.
    """

    at: datetime
    counters: tuple[Counter, ...]
    troubles: tuple[Problem, ...]
    warnings: tuple[Problem, ...]
    lines: tuple[TopologyLine, ...]
    background_tasks: tuple[BackgroundTask, ...]
    last_action: tuple[int, str] | None
    other_parked: int
    acknowledged: tuple[tuple[Problem, Acknowledgement], ...] = ()

    @cached_property
    def version(self) -> str:
        """Changes when the page shows something else."""
        said = tuple(
            (one.severity, one.identity, one.sentence, one.since_at) for one in self.open_problems
        )
        known = tuple((one.identity, row.until_at) for one, row in self.acknowledged)
        figures = tuple((one.key, one.text, one.note, one.is_bad) for one in self.counters)
        lines = tuple(one.shown for one in self.lines)
        rest = (self.system, self.other_parked, self.last_action)
        return make_version(said, known, figures, lines, *rest)

    @property
    def open_problems(self) -> tuple[Problem, ...]:
        """The worst first."""
        return (*self.troubles, *self.warnings)

    @property
    def title(self) -> str:
        """The answer of the page."""
        if self.open_problems:
            return count_of(len(self.open_problems), "problem")
        return "Recording is incomplete" if self.is_incomplete else "All systems normal"

    @property
    def main_counters(self) -> list[Counter]:
        """What needs somebody, or soon may."""
        return [one for one in self.counters if one.key in MAIN]

    @property
    def small_counters(self) -> list[Counter]:
        return [one for one in self.counters if one.key not in MAIN]

    @property
    def state(self) -> str:
        """The worst of it, in one word."""
        if self.troubles:
            return "error"
        return "warning" if self.warnings or self.is_incomplete else "ok"

    @property
    def first_lines(self) -> tuple[TopologyLine, ...]:
        return self.lines[:LINES]

    @property
    def other_lines(self) -> tuple[TopologyLine, ...]:
        return self.lines[LINES:]

    @property
    def is_incomplete(self) -> bool:
        """Whether messages may have entered or left that nobody counted."""
        return any(line.flow.unknown for line in self.lines)

    @property
    def undecided(self) -> frozenset[str]:
        """Identities of problems that may last, of topologies that are not observed at present."""
        unknown = [line.topology.pk for line in self.lines if line.flow.unknown]
        keys = (problems.OVERDUE, problems.BURNING)
        return frozenset(key.format(pk) for pk in unknown for key in keys)

    @property
    def system(self) -> str:
        return describe_tasks(self.background_tasks)


def count_each(
    brokers: Sequence[Broker], now: datetime, max_age: timedelta
) -> dict[Broker, dict[str, int]]:
    """The known counters of each broker by their keys, as the overview of it alone has them.

    Read by as few queries for all brokers as for one.
    """
    known = dict(zip(brokers, snapshots.fresh_all(brokers, max_age), strict=True))
    by_id = {broker.pk: one for broker, one in known.items()}
    owners = dict(Topology.objects.filter(broker__in=brokers).values_list("pk", "broker"))
    scope = counts.scope(brokers, now)
    waits = {
        "scheduled": scope.by_topology,
        "due_within_hour": counts.count_by_topology(scope.rows(now, now + counts.SPANS["hour"])),
        "overdue": counts.count_by_topology(scope.overdue_rows()),
    }
    missing = problems.read_missing_bindings(brokers)
    flows = flow_lines(brokers, background_tasks_of(brokers), now)
    waiting = count_waiting(flows, scope.by_topology, by_id)
    parked, open_findings = counters.count_parked(brokers), count_open(brokers, now)
    queues, replays = counters.read_confirmed(brokers), counters.count_replays(brokers)
    found: dict[Broker, dict[str, int]] = {}
    for broker, latest in known.items():
        pk = broker.pk
        own = {
            key: sum(number for of, number in numbers.items() if owners.get(of) == pk)
            for key, numbers in waits.items()
        }
        own = {key: n for key, n in own.items() if key == "scheduled" or n <= counts.MOST}
        figures = (
            counters.retrying_counter([f for f in flows if f.topology.broker_id == pk], waiting),
            counters.dead_letters_counter(
                [row for row in queues if row.broker_id == pk],
                {pk: latest},
                [number for (of, _), number in parked.items() if of == pk],
            ),
            counters.findings_counter([(broker, make_counts(open_findings.get(pk, {})))]),
        )
        stuck = sum(row.stuck for row in missing if row.topology.broker_id == pk)
        known_figures = {one.key: one.number for one in figures if one.number is not None}
        found[broker] = {**own, "stuck": stuck, "replays": replays.get(pk, 0), **known_figures}
    return found


def share_overview(brokers: Sequence[Broker], now: datetime) -> Overview:
    """Work it out, and keep it for the pages that know its version."""
    found = overview(brokers, now, BROKER_AGE)
    _newest[_key(brokers)] = found
    _versions[_key(brokers)].append(found.version)
    return found


def shared_overview(brokers: Sequence[Broker], version: str, now: datetime) -> Overview | None:
    """The newest that was shared, if it is of this version or a later one."""
    found = _newest.get(_key(brokers))
    is_new = found is not None and now - found.at < SHARED_AGE
    return found if is_new and version in _versions[_key(brokers)] else None


def _key(brokers: Sequence[Broker]) -> tuple[int, ...]:
    return tuple(sorted(broker.pk for broker in brokers))


def overview(
    brokers: Sequence[Broker],
    now: datetime,
    max_age: timedelta,
    named: int | None = problems.NAMED,
) -> Overview:
    """Everything about these brokers that the first page shows; `named` as in find_unroutable."""
    known = dict(zip(brokers, snapshots.fresh_all(brokers, max_age), strict=True))
    open_findings = count_open(brokers, now)
    findings = [(one, make_counts(open_findings.get(one.pk, {}))) for one in brokers]
    tasks = background_tasks_of(brokers)
    disk = read_disk_space(settings.EVENT_LOG)
    by_id = {broker.pk: one for broker, one in known.items()}
    flows = flow_lines(brokers, tasks, now)
    scope = counts.scope(brokers, now)
    late = read_lateness(flows)
    waiting = count_waiting(flows, scope.by_topology, by_id)
    missing = problems.read_missing_bindings(brokers)
    queues, parked = read_queues(flows), counters.count_parked(brokers)
    found = [
        *problems.find_unroutable(missing, named),
        *find_outages(known, tasks, disk),
        *problems.find_lost_taps(known, [one.topology for one in flows]),
        *problems.find_drifted(brokers),
        *problems.find_overdue(scope, [one.topology for one in flows if not one.unknown]),
        *problems.find_overdue_probes(brokers),
        *problems.find_losses(brokers, now, named),
        *find_burning(flows, late),
        *problems.find_missed_targets(brokers),
        *problems.find_paused(brokers, named),
        *problems.find_paused_migrations(brokers),
        *find_growing(brokers, by_id, scope.now),
        *find_silent_addresses(brokers),
        *find_ending_certificates(brokers, now),
        *find_delays(known, tasks, disk),
        *find_host_problems(scope.now),
        *find_failed_runs(scope.now.date()),
        *find_unsent(),
    ]
    figures = (
        *counters.waits_counters(scope, missing),
        counters.retrying_counter(flows, waiting),
        counters.dead_letters_counter(counters.read_confirmed(brokers), by_id, parked.values()),
        lateness_counter(late),
        counters.replays_counter(brokers),
        counters.findings_counter(findings),
    )
    actions = AuditEntry.objects.filter(broker__in=brokers).exclude(action__in=VIEWS)
    began = dict(AlertProblem.objects.filter(resolved_at=None).values_list("identity", "since_at"))
    found = [replace(one, since_at=began.get(one.identity)) for one in found]
    open_ones, acknowledged = split(found, now)
    lines = make_lines(flows, late, waiting, queues, parked, found)
    drawn = draw_days(lines[:LINES], now)
    return Overview(
        at=now,
        counters=counters.add_changes(figures, brokers, now),
        troubles=tuple(one for one in open_ones if one.severity == "error"),
        warnings=tuple(one for one in open_ones if one.severity == "warning"),
        lines=(*drawn, *lines[LINES:]),
        background_tasks=tasks,
        last_action=actions.order_by("-pk").values_list("pk", "outcome").first(),
        other_parked=count_other_parked(queues, parked),
        acknowledged=tuple(acknowledged),
    )
