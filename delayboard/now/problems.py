"""Troubles that Now reports: stuck messages, drift, overdue messages, the worst findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import groupby
from typing import Literal
from urllib.parse import urlencode

from django.db.models import Count, Exists, Max, OuterRef, TextChoices
from django.urls import reverse  # noqa: TID251 - alerts, which no view renders, link too

from analytics.buckets import LONG_OVERDUE
from analytics.models import Probe, Run, Slo
from analytics.results.figures import Figures
from analytics.results.read import budgets_of, last_day
from analytics.results.section import percent
from analytics.results.slo import attainment
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.counts import Scope
from delayboard.dead_letters.queues.confirmed import GROWTH_SPAN, growths
from delayboard.delay_migration.migrate import open_migrations
from delayboard.models import BatchState, DeadLetterQueue, ParkedMessage, ParkedState, ReplayBatch
from delayboard.models.acknowledgement import LONGEST_IDENTITY
from delayboard.now.lateness import Lateness
from delayboard.now.throughput import FlowLine
from topology.content.text import count_of, count_text
from topology.delays import format_span
from topology.findings.hit import Severity as FindingSeverity
from topology.graph.live_values import make_version
from topology.models import (
    Broker,
    Drift,
    FindingMute,
    FindingPeriod,
    MissingBinding,
    State,
    Topology,
)
from topology.snapshots import Latest

# Most destinations of a topology that are named; more are counted.
NAMED = 3
Severity = Literal["error", "warning"]
WORST = (FindingSeverity.LOSS.key, FindingSeverity.STUCK.key)

# States of a queue that lacks its node, or most of its nodes, as RabbitMQ lists them.
_LOST = ("down", "minority")
# Keys of problems that follow from what is observed, by the primary key of the topology.
OVERDUE, BURNING = "overdue/{}", "burn/{}"
# Burn rate that uses up 2 % of the error budget of 28 days in an hour, as in Google's SRE workbook.
FAST_BURN = 13.4
# Least number of late messages; fewer say little.
LATE_AT_LEAST = 5
# Least growth in an hour; less comes from single messages.
GROWS_BY = 10
CONDITION = f"at least {GROWS_BY} more in a queue within {format_span(GROWTH_SPAN)}"


class ProblemKind(TextChoices):
    """What alerts can be restricted to; a problem without a kind of its own is OTHER."""

    STUCK = "stuck", "Stuck messages"
    OVERDUE = "overdue", "Overdue messages"
    DEAD_LETTERS = "dead_letters", "Dead letters growing"
    SLO = "slo", "Error budget of a target"
    FINDINGS = "findings", "Findings of message loss or stuck messages"
    DRIFT = "drift", "Topology not in sync"
    PROBES = "probes", "Probes overdue"
    REPLAY_PAUSED = "replay_paused", "Replay paused"
    BROKER = "broker", "Broker not answering or with an alarm"
    BEHIND = "behind", "Recorder or background task behind"
    TASKS = "tasks", "Worker or background task failing"
    DISK = "disk", "Disk of the event log"
    DELIVERY = "delivery", "Reports or alerts not sent"
    OTHER = "other", "Other problems"


@dataclass(frozen=True)
class Link:
    """A page by the name of its URL; pages and alerts resolve it."""

    label: str
    url_name: str
    arguments: tuple[str, ...] = ()
    query: Mapping[str, str] = field(default_factory=dict)
    fragment: str = ""

    @property
    def address(self) -> str:
        query = f"?{urlencode(self.query)}" if self.query else ""
        fragment = f"#{self.fragment}" if self.fragment else ""
        return f"{reverse(self.url_name, args=self.arguments)}{query}{fragment}"


@dataclass(frozen=True)
class Problem:
    """One sentence about what is wrong, and where to act. "error" needs somebody now.

    With a `key` the sentence may change while it is shown. `state` is the word for it beside its
    `topology`. `broker` is empty for problems of Delayboard itself. `is_rest` counts problems that
    are not named. `since_at` is its begin as the worker saw it. `error` is the text of an error:
    of another kind it is the same problem, and needs somebody again.
    """

    severity: Severity
    kind: ProblemKind
    sentence: str
    link: Link | None = None
    key: str = ""
    topology: int | None = None
    state: str = ""
    broker: int | None = None
    is_rest: bool = False
    since_at: datetime | None = None
    error: str = ""

    @property
    def identity(self) -> str:
        return (self.key or self.sentence)[:LONGEST_IDENTITY]

    @property
    def error_kind(self) -> str:
        """Equal for errors that differ in their numbers, which change with each attempt."""
        return make_version(re.sub("[0-9]+", "", self.error)) if self.error else ""


def read_missing_bindings(brokers: Sequence[Broker]) -> list[MissingBinding]:
    """The missing bindings of the applied topologies of these brokers."""
    rows = MissingBinding.objects.filter(
        topology__broker__in=brokers, topology__state=State.APPLIED
    )
    return list(rows.select_related("topology"))


def find_unroutable(rows: Iterable[MissingBinding], named: int | None = NAMED) -> Iterator[Problem]:
    """The destinations that RabbitMQ cannot route to, and stuck messages, by topology.

    At most `named` of a topology, and one problem for the rest; all of them with None.
    """
    in_order = sorted(rows, key=lambda row: (row.topology.name, row.topology_id))
    of_topology = groupby(in_order, key=lambda row: row.topology)
    found = [(topology, list(group)) for topology, group in of_topology]
    for topology, group in sorted(found, key=lambda pair: -sum(row.stuck for row in pair[1])):
        link = Link("View destinations", "topology:topology_destinations", (topology.slug,))
        for row in group[:named]:
            needs_binding = bool(row.destination) and row.restored_at is None
            where = replace(link, label="Restore binding") if needs_binding else link
            severity: Severity = "warning" if row.restored_at else "error"
            sentence, key = f"{topology.name}: {row.sentence}", f"binding/{row.pk}"
            kind, of = ProblemKind.STUCK, topology.broker_id
            yield Problem(severity, kind, sentence, where, key, topology.pk, row.state, of)
        if rest := group[len(group) if named is None else named :]:
            more = count_of(len(rest), "more destination")
            stuck, waiting = (sum(getattr(row, n) for row in rest) for n in ("stuck", "waiting"))
            sentence = (
                f"{topology.name}: {more} cannot be reached "
                f"({count_text(stuck)} stuck, {count_text(waiting)} waiting)."
            )
            key, kind, of = f"bindings/{topology.pk}", ProblemKind.STUCK, topology.broker_id
            yield Problem("error", kind, sentence, link, key, topology.pk, "Stuck", of, True)


def find_lost_taps(
    known: Mapping[Broker, Latest], topologies: Iterable[Topology]
) -> Iterator[Problem]:
    """The taps without the nodes that they are on, and what that does to who publishes.

    Tried: docs/event-log.md, Which tap does no harm.
    """
    seen = {broker.pk: one.snapshot for broker, one in known.items() if not one.error}
    for topology in topologies:
        snapshot = seen.get(topology.broker_id)
        tap = snapshot.numbers.get(topology.tap_queue) if snapshot and topology.has_tap else None
        if snapshot is None or tap is None or tap.state not in _LOST:
            continue
        name, where = topology.name, f"of the tap “{topology.tap_queue}”"
        remedy = "Replace the tap or start the node."
        if tap.state == "minority":
            what = f"Publishers of {name} get no confirmation: most nodes {where} are"
            remedy = "Start the nodes."
        elif snapshot.version_tuple >= (4,):
            what = f"Publishers of {name} are refused although their messages arrive: "
            what += f"the node {where} is"
        else:
            what = f"{name} is not recorded: the node {where} is"
        link = Link("View tap", "topology:topology", (topology.slug,))
        sentence, key = f"{what} down. {remedy}", f"tap/{topology.pk}"
        kind, of = ProblemKind.BROKER, topology.broker_id
        yield Problem("error", kind, sentence, link, key, topology.pk, "Tap down", of)


def find_drifted(brokers: Sequence[Broker]) -> Iterator[Problem]:
    """The applied topologies that differ from their definition, with the plan that restores it."""
    rows = Drift.objects.filter(topology__broker__in=brokers, topology__state=State.APPLIED)
    for row in rows.select_related("topology").order_by("topology__name", "pk"):
        link = Link("View plan", "topology:topology", (row.topology.slug,), fragment="plan")
        sentence, key = f"{row.topology.name}: {row.sentence}", f"drift/{row.pk}"
        kind, of = ProblemKind.DRIFT, row.topology.broker_id
        yield Problem("error", kind, sentence, link, key, row.topology_id, "Not in sync", of)


def find_growing(
    brokers: Sequence[Broker], known: Mapping[int, Latest], now: datetime
) -> Iterator[Problem]:
    """The confirmed queues with at least GROWS_BY new dead letters in the last hour.

    Of a queue without a sample an hour old, since its first one; without any nothing is known.
    """
    rows = DeadLetterQueue.objects.filter(broker__in=brokers, is_confirmed=True)
    queues = list(rows.select_related("broker").order_by("queue", "pk"))
    if not queues:
        return
    depths = {row.pk: read_depth(row, known[row.broker_id]) for row in queues}
    in_queue = growths(depths, now)
    spans = {growth.since for growth in in_queue.values()}
    parked = {since: _count_parked(brokers, now - since) for since in spans}
    for row in queues:
        growth = in_queue.get(row.pk)
        if growth is None:
            continue
        number = growth.change + parked[growth.since].get((row.broker_id, row.queue), 0)
        if number >= GROWS_BY:
            link = Link("View dead letters", "dead_letters", query={"broker": row.broker.slug})
            minutes = growth.since // timedelta(minutes=1)
            ago = "an hour" if growth.since >= GROWTH_SPAN else f"{minutes} min"
            sentence = f"{row.queue}: {count_text(number)} more dead letters than {ago} ago."
            key, kind, of = f"growing/{row.pk}", ProblemKind.DEAD_LETTERS, row.broker_id
            yield Problem("warning", kind, sentence, link, key, broker=of)


def _count_parked(brokers: Sequence[Broker], since_at: datetime) -> dict[tuple[int, str], int]:
    """Broker and queue -> how many messages were parked from it since then."""
    # The time of the state has the index.
    since = {"state_at__gt": since_at, "parked_at__gt": since_at}
    recent = ParkedMessage.objects.filter(broker__in=brokers, state=ParkedState.PARKED, **since)
    counts = recent.order_by().values_list("broker", "queue").annotate(number=Count("pk"))
    return {(broker, queue): number for broker, queue, number in counts}


def read_depth(row: DeadLetterQueue, known: Latest) -> int | None:
    """0 for a queue that no longer exists."""
    if known.snapshot is None:
        return None
    numbers = known.snapshot.numbers.get(row.queue)
    return numbers.messages if numbers else 0


def find_burning(flows: Sequence[FlowLine], found: Mapping[int, Lateness]) -> Iterator[Problem]:
    """The topologies that use up the error budget of 28 days in two days or less."""
    for one in flows:
        late = found[one.topology.pk]
        hour = late.hour
        if hour is None or hour.burn_rate is None or hour.measured - hour.within < LATE_AT_LEAST:
            continue
        if hour.burn_rate >= FAST_BURN:
            topology = one.topology
            query = {"topology": topology.slug, "range": "28"}
            link = Link("View report", "analytics:reports", query=query, fragment="slo")
            sentence = (
                f"{topology.name}: {percent(hour.within / hour.measured)} of the deliveries of "
                f"the last hour met the target {late.target}. The error budget is "
                f"used {hour.burn_rate:.0f} times as fast as the target allows."
            )
            key, kind, of = BURNING.format(topology.pk), ProblemKind.SLO, topology.broker_id
            yield Problem("warning", kind, sentence, link, key, topology.pk, "Late", of)


def find_overdue(scope: Scope, topologies: Iterable[Topology]) -> Iterator[Problem]:
    """Topologies with messages that should have left a minute ago, without stuck ones.

    For topologies whose copies are read at present: nobody may have observed those of others.
    """
    at = scope.now - LONG_OVERDUE
    numbers = counts.count_by_topology(scope.rows(until_at=at))
    numbers.subtract(counts.count_by_topology(scope.stuck_rows(until_at=at)))
    for topology in topologies:
        if (number := numbers[topology.pk]) > 0:
            query = {"topology": topology.slug, "overdue": "1"}
            link = Link("View overdue messages", "analytics:scheduled", query=query)
            messages, key = count_of(number, "message", "is"), OVERDUE.format(topology.pk)
            sentence = f"{topology.name}: {messages} overdue by a minute or more."
            kind, of = ProblemKind.OVERDUE, topology.broker_id
            yield Problem("error", kind, sentence, link, key, topology.pk, "Overdue", of)


def find_overdue_probes(brokers: Sequence[Broker]) -> Iterator[Problem]:
    """The topologies with probes that did not arrive in time.

    A warning: that messages of others are late is a problem of its own.
    """
    overdue = Probe.overdue().filter(topology__broker__in=brokers)
    names = ("broker", "pk", "slug", "name")
    rows = overdue.values_list(*(f"topology__{name}" for name in names))
    found = rows.annotate(number=Count("pk")).order_by("topology__name", "topology__pk")
    for of, pk, slug, name, number in found:
        probes = count_of(number, "probe", "is")
        link = Link("View probes", "topology:topology_settings", (slug,), fragment="probes")
        sentence = f"{name}: {probes} overdue by a minute or more. Real messages may be too."
        key, kind = f"probes/{pk}", ProblemKind.PROBES
        yield Problem("warning", kind, sentence, link, key, pk, "Probe overdue", of)


def find_losses(
    brokers: Sequence[Broker], now: datetime, named: int | None = NAMED
) -> Iterator[Problem]:
    """The findings by which messages are lost or get stuck; of a broker `named`, then the rest.

    Lost messages need somebody now: nothing brings them back.
    """
    mutes = FindingMute.active(now).filter(broker=OuterRef("broker"), key=OuterRef("key"))
    worst = (FindingSeverity.LOSS, FindingSeverity.STUCK)
    rows = FindingPeriod.objects.filter(
        ~Exists(mutes), broker__in=brokers, resolved_at=None, severity__in=worst
    )
    by_pk = {broker.pk: broker for broker in brokers}
    in_order = rows.order_by("broker__name", "broker", "-severity", "appeared_at", "pk")
    for pk, found in groupby(in_order, key=lambda row: row.broker_id):
        broker, group, kind = by_pk[pk], list(found), ProblemKind.FINDINGS
        for row in group[:named]:
            severity: Severity = "error" if row.severity == FindingSeverity.LOSS else "warning"
            objects = f" ({count_of(row.objects_count, 'object')})" if row.objects_count > 1 else ""
            effect = "messages are lost" if severity == "error" else "messages get stuck"
            sentence = f"{broker.name}: {effect}. {row.title}{objects}"
            link = Link("View remedy", "topology:finding", (broker.slug, row.key))
            key = f"finding/{pk}/{row.key}"
            yield Problem(severity, kind, sentence, link, key, broker=pk)
        if named is not None and (rest := group[named:]):
            severity = "error" if rest[0].severity == FindingSeverity.LOSS else "warning"
            sentence = f"{broker.name}: {count_of(len(rest), 'more finding')} of Loss or Stuck."
            link, key = Link("View findings", "topology:findings", (broker.slug,)), f"findings/{pk}"
            yield Problem(severity, kind, sentence, link, key, broker=pk, is_rest=True)


def find_missed_targets(brokers: Sequence[Broker]) -> Iterator[Problem]:
    """The topologies that were late more often in 28 days than their target allows."""
    rows = Slo.objects.filter(topology__broker__in=brokers, topology__state=State.APPLIED)
    targets = tuple(rows.select_related("topology__broker").order_by("topology__name", "pk"))
    if not targets:
        return
    newest = Run.objects.aggregate(at=Max("finished_at"))["at"]
    budgets = _budgets(targets, last_day(), newest)
    for target, figures in zip(targets, budgets, strict=True):
        topology = target.topology
        month = attainment(figures.late, target.percent, target.within_ms)
        if month.share is not None and month.budget_left is not None and month.budget_left < 0:
            query = {"topology": topology.slug, "range": "28"}
            link = Link("View report", "analytics:reports", query=query, fragment="slo")
            sentence = (
                f"{topology.name}: the error budget of 28 days is used up. The target is {target}, "
                f"and {percent(month.share)} of the deliveries met it."
            )
            key, kind, of = f"slo/{topology.pk}", ProblemKind.SLO, topology.broker_id
            yield Problem("warning", kind, sentence, link, key, topology.pk, "Target missed", of)


@lru_cache(16)
def _budgets(targets: tuple[Slo, ...], last: date, computed_at: datetime | None) -> list[Figures]:
    """The figures of each target's 28 days, which change only with a nightly run or at midnight."""
    found = budgets_of([one.topology for one in targets], last)
    return [found[one.topology.slug] for one in targets]


def find_paused(brokers: Sequence[Broker], named: int | None = NAMED) -> Iterator[Problem]:
    """The replays that go on only when somebody resumes them; `named` as in find_unroutable."""
    rows = ReplayBatch.objects.filter(broker__in=brokers, state=BatchState.PAUSED)
    paused = list(rows.values_list("pk", "state_why", "died", "broker"))
    for pk, why, died, of in paused[:named]:
        link, step = Link("View replay", "replay_batch", (str(pk),)), "Resume or cancel it."
        if died:
            link = replace(link, label="View failures", fragment="failures")
            step = "Correct the cause, then resume or cancel it."
        sentence = " ".join(filter(None, (f"Replay {pk} is paused.", why, step)))
        yield Problem("warning", ProblemKind.REPLAY_PAUSED, sentence, link, broker=of)
    if named is not None and len(paused) > named:
        sentence = f"{count_of(len(paused) - named, 'more replay', 'is')} paused."
        link = Link("View replays", "replays")
        kind = ProblemKind.REPLAY_PAUSED
        yield Problem("warning", kind, sentence, link, "paused", is_rest=True)


def find_paused_migrations(brokers: Sequence[Broker]) -> Iterator[Problem]:
    """The migrations of waiting messages that go on only when somebody resumes them."""
    rows = open_migrations().filter(source__broker__in=brokers, work__pause_requested=True)
    for row in rows.select_related("source", "target"):
        link = Link("View migration", "migrate_delays", (row.source.slug,))
        migration = f"The migration from {row.source.name} to {row.target.name}"
        sentence = f"{migration} is paused. Resume or cancel it."
        key, of = f"migration/{row.source_id}", row.source.broker_id
        yield Problem("warning", ProblemKind.OTHER, sentence, link, key, broker=of)
