"""Messages between two attempts: in retry loops, pairs and ladders, or in their consumers' delays.

What the recorder saw enter is listed; of what no tap sees only the depth is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from analytics.models import ScheduledMessage
from analytics.observation import due_before, observe
from analytics.scheduled.pages import lines
from analytics.scheduled.pages.lines import Reader, ScheduledLine
from analytics.scheduled.queries import listing
from analytics.scheduled.queries.listing import Filter, ScheduledSearch
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.completeness import Doubt
from analytics.scheduled.summaries.counts import Scope
from analytics.search.find import Found
from topology.clients.describe import count_failures
from topology.deaths import REASONS, read_history
from topology.definitions import is_tap
from topology.message import DEATH_HEADERS
from topology.models import Broker, State, Topology
from topology.operations import provision
from topology.patterns.chain.params import Params as ChainParams
from topology.patterns.chain.params import chain_of
from topology.patterns.pattern import ParamsError
from topology.patterns.table import find_retry_kinds
from topology.redaction import HIDDEN, Redaction
from topology.snapshot import Snapshot

# Headers, and names within x-death, that show the failures.
SHOWN_BY = (*sorted(DEATH_HEADERS), "queue", "reason", "count")


@dataclass(frozen=True)
class Retry:
    """A message that waits for its next attempt.

    `round` numbers its trips through the delay from 1; 0 when it was delayed and not tried yet.
    `of` is the number of rounds, None when only its consumer has it. `failed` is the reason in
    words, "" when unknown and HIDDEN when a rule redacts it.
    """

    line: ScheduledLine
    round: int
    of: int | None
    failed: str


@dataclass(frozen=True)
class Depth:
    """A retrying topology: its listed messages and the depth of its delay queues.

    `queued` is None when not reported by the broker. `sees_entries` is false without an entry tap,
    `is_inside` is true when retries wait within the work queue.
    """

    topology: Topology
    listed: int
    queued: int | None
    sees_entries: bool
    is_inside: bool

    @property
    def description(self) -> str:
        """What is known of it, in words."""
        if self.is_inside:
            return "Depth only: messages wait for the next attempt inside the queue."
        if not self.sees_entries:
            return "Depth only: this topology has no entry tap."
        return "Recorded on entry."


@dataclass(frozen=True)
class RetryList:
    """`retries` are in due order."""

    topologies: Sequence[Topology]
    depths: Sequence[Depth]
    doubts: Sequence[Doubt]
    retries: Sequence[Retry] = ()
    found: Found = field(default_factory=Found)

    @property
    def has_no_entry_tap(self) -> bool:
        return bool(self.depths) and not any(depth.sees_entries for depth in self.depths)


def retrying(
    brokers: Sequence[Broker],
    filters: Filter,
    read: Mapping[Broker, Snapshot],
    now: datetime,
    *,
    hidden: Mapping[int, Redaction],
    after: int | None = None,
) -> RetryList:
    """What waits in the brokers' retry topologies; nothing is listed while the filter has problems.

    `read` has the newest snapshots, without brokers that never answered. `hidden` is what of each
    broker's messages is hidden from whom the page is for, by its id.
    """
    rows = Topology.objects.filter(
        broker__in=brokers, kind__in=find_retry_kinds(), state=State.APPLIED
    )
    topologies = list(rows.select_related("broker"))
    scope = counts.scope_of(topologies, now)
    shown = RetryList(
        topologies=topologies,
        depths=_depths(topologies, scope, read),
        doubts=lines.doubts(scope, brokers, topologies),
    )
    if filters.problems:
        return shown
    asked = [one for one in topologies if filters.topology in ("", one.slug)]
    delivered = due_before(scope.delivered_before, scope.stuck)
    waiting = listing.filter_waiting(brokers, filters, scope.now, delivered=delivered)
    # One by one, for of a million rows few may be retries.
    parts = [one.pk for one in asked if scope.by_topology[one.pk]]
    search = ScheduledSearch(brokers, waiting.filter(topology__in=parts), filters.query, parts)
    found, page = lines.find_page(search, after)
    reader = Reader(hidden, scope.not_observed, scope.stuck)
    retries = [_retry(row, reader.line(row, now)) for row in page]
    return replace(shown, retries=retries, found=found)


def _retry(row: ScheduledMessage, line: ScheduledLine) -> Retry:
    failed = _describe_failures(line)
    # Consumers that republish a failed message leave no death to count.
    tried = (
        row.attempt > 1
        or bool(failed)
        or _numbers_retries(row.topology)
        or count_failures(line.headers, row.destination) > 0
    )
    return Retry(line, row.attempt if tried else 0, _count_rounds(row.topology), failed)


def _numbers_retries(topology: Topology | None) -> bool:
    """Whether each attempt from 1 on is a retry, so that the first is of no new message."""
    if topology is None:
        return False
    pattern = topology.pattern
    return pattern.ATTEMPTS_COUNTED_BY == "consumer" or pattern.is_held(topology.parsed)


def _count_rounds(topology: Topology | None) -> int | None:
    """How many rounds there are, where the topology and not a consumer limits them."""
    if topology is None:
        return None
    try:
        return topology.pattern.rounds(topology.parsed)
    except ParamsError:
        return None


def _describe_failures(line: ScheduledLine) -> str:
    """The failures among its deaths when it entered: “rejected 2 times in orders”.

    HIDDEN where a rule hides any header that they may come from.
    """
    if any(map(line.hidden.hides_header, SHOWN_BY)):
        return HIDDEN
    deaths = read_history(line.headers).deaths
    parts = [
        f"{death.reason} {'once' if death.count == 1 else f'{death.count} times'} in {death.queue}"
        for death in deaths
        if death.reason in REASONS and death.reason != "expired"
    ]
    return ", ".join(parts)


def _depths(
    topologies: Sequence[Topology], scope: Scope, read: Mapping[Broker, Snapshot]
) -> list[Depth]:
    """The depths of queues, the largest first."""
    observed, inside = observe(topologies, scope.now), set(filter(waits_in_work_queue, topologies))
    found = [
        Depth(
            topology=one,
            listed=scope.by_topology[one.pk],
            queued=count_queued(one, read[one.broker]) if one.broker in read else None,
            sees_entries=one not in inside and "entry" not in observed[one.pk].not_observed,
            is_inside=one in inside,
        )
        for one in topologies
    ]
    return sorted(found, key=lambda depth: (-(depth.queued or 0), depth.topology.name))


def waits_in_work_queue(topology: Topology) -> bool:
    """Whether RabbitMQ itself delays the retries of a quorum queue, whoever declared it."""
    if topology.pattern.ATTEMPTS_COUNTED_BY == "queue":
        return True
    try:
        params = topology.parsed
    except ParamsError:
        return False
    return isinstance(params, ChainParams) and chain_of(params).is_native


def count_queued(topology: Topology, snapshot: Snapshot) -> int | None:
    """Messages in its delays; of one that retries within its work queue, in that one."""
    try:
        queues = provision.queues_of(topology, snapshot)
        waits = topology.pattern.delay_queues(topology.parsed, queues)
        work = topology.pattern.targets(topology.parsed)
        forwarders = {forwarder.queue for forwarder in topology.forwarders}
    except ParamsError:
        return None
    is_inside = waits_in_work_queue(topology)
    names = [
        queue.name
        for queue in queues
        if (queue.name in work if is_inside else queue in waits) or queue.name in forwarders
        if not is_tap(queue.name)
    ]
    return snapshot.sum_messages(names)
