"""One line for each topology: how it does, and what is in it. Problem comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from delayboard.dead_letters.retrying import count_queued, waits_in_work_queue
from delayboard.now.lateness import Lateness
from delayboard.now.problems import Problem
from delayboard.now.throughput import FlowLine
from topology.models import Topology
from topology.patterns.pattern import ParamsError
from topology.patterns.table import KINDS
from topology.snapshots import Latest

# By broker and name.
Queues: TypeAlias = set[tuple[int, str]]


@dataclass(frozen=True)
class TopologyLine:
    """`dead` are parked messages that failed in its queues, None where that is not known."""

    flow: FlowLine
    lateness: Lateness
    waiting: int | None
    dead: int | None
    trouble: Problem | None = None

    @property
    def topology(self) -> Topology:
        return self.flow.topology

    @property
    def key(self) -> str:
        return self.flow.key

    @property
    def pattern(self) -> str:
        return KINDS[self.topology.kind].EXPLANATION.title

    @property
    def state(self) -> str:
        if self.trouble:
            return self.trouble.state
        return "Late" if self.flow.is_late else self.flow.status

    @property
    def mark(self) -> str:
        if self.trouble:
            return "failed" if self.trouble.severity == "error" else "late"
        return "late" if self.flow.is_late else self.flow.mark

    @property
    def shown(self) -> tuple[object, ...]:
        """What is in the line."""
        row, late = self.topology, self.lateness
        return (
            (row.slug, row.name, self.mark, self.state, self.waiting),
            (self.dead, late.text, late.note, *self.flow.shown),
        )


def count_waiting(
    flows: Iterable[FlowLine], listed: Mapping[int, int], known: Mapping[int, Latest]
) -> dict[int, int | None]:
    """Topology -> how many wait: as listed where entries are recorded, else what its queues hold.

    None while that is not known either.
    """
    found: dict[int, int | None] = {}
    for flow in flows:
        topology, latest = flow.topology, known[flow.topology.broker_id]
        is_seen = not flow.unknown and "entry" not in flow.not_observed
        if is_seen and not waits_in_work_queue(topology):
            found[topology.pk] = listed.get(topology.pk, 0)
        else:
            snapshot = None if latest.error else latest.snapshot
            found[topology.pk] = count_queued(topology, snapshot) if snapshot else None
    return found


def make_lines(
    flows: Iterable[FlowLine],
    lateness: Mapping[int, Lateness],
    waiting: Mapping[int, int | None],
    queues: Mapping[int, Queues],
    parked: Mapping[tuple[int, str], int],
    troubles: Sequence[Problem],
) -> tuple[TopologyLine, ...]:
    """The lines in the order of their troubles, those of one severity by name."""
    shared = _find_shared(queues)
    first: dict[int, Problem] = {}
    for trouble in troubles:
        if trouble.topology is not None:
            first.setdefault(trouble.topology, trouble)
    lines = []
    for flow in flows:
        pk = flow.topology.pk
        dead = _count_dead(flow.topology, queues[pk], shared, parked)
        lines.append(TopologyLine(flow, lateness[pk], waiting[pk], dead, first.get(pk)))
    ranks = {"failed": 0, "late": 1}
    return tuple(sorted(lines, key=lambda line: (ranks.get(line.mark, 2), line.topology.name)))


def _count_dead(
    topology: Topology, queues: Queues, shared: Queues, parked: Mapping[tuple[int, str], int]
) -> int | None:
    if any(parked.get(one) for one in queues & shared):
        return None
    number = sum(parked.get(one, 0) for one in queues)
    # RabbitMQ records no death where the consumer publishes its failures: none found is no zero.
    is_known = number > 0 or topology.pattern.ATTEMPTS_COUNTED_BY != "consumer"
    return number if queues and is_known else None


def _find_shared(queues: Mapping[int, Queues]) -> Queues:
    """The queues of several topologies: what failed there is of one of them, unknown which."""
    uses = Counter(one for found in queues.values() for one in found)
    return {one for one, number in uses.items() if number > 1}


def read_queues(flows: Iterable[FlowLine]) -> dict[int, Queues]:
    """Topology -> its delay, work and parking queues; none where it delivers to others' queues."""
    found: dict[int, Queues] = {}
    for topology in (flow.topology for flow in flows):
        names = set[str]()
        with suppress(ParamsError):
            if targets := topology.pattern.targets(topology.parsed):
                own = topology.pattern.definitions(topology.parsed).queues
                names = {*targets, *(one.name for one in own)}
        found[topology.pk] = {(topology.broker_id, name) for name in names}
    return found


def count_other_parked(queues: Mapping[int, Queues], parked: Mapping[tuple[int, str], int]) -> int:
    """The parked messages that are in no line: failed in other queues, in one that topologies
    share, or in an unknown one.
    """
    shared = _find_shared(queues)
    known = [found for found in queues.values() if not any(parked.get(q) for q in found & shared)]
    counted = set[tuple[int, str]]().union(*known)
    return sum(number for failed_in, number in parked.items() if failed_in not in counted)
