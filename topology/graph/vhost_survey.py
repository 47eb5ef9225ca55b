"""The owners of a virtual host's exchanges and queues, by group, and all arrows between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from topology.definitions import Definitions
from topology.graph.edges import DEFAULT, Edge, edges_of
from topology.graph.live_values import snapshot_marks
from topology.snapshot import Snapshot

QUEUES, EXCHANGES, MISSING = "queues", "exchanges", "missing"


@dataclass(frozen=True)
class Group:
    """Exchanges and queues that belong together; `members` are ids such as "queue/orders".

    `key` is none of QUEUES, EXCHANGES and MISSING. A member of several groups is drawn in the first
    only. `extra_edges` are arrows that definitions do not contain. `waiting` counts the messages in
    its delay queues, None when unknown. `trouble` are sentences on missing objects.
    """

    key: str
    title: str
    kind: str
    members: frozenset[str]
    waiting: int | None = None
    trouble: tuple[str, ...] = ()
    extra_edges: tuple[Edge, ...] = ()


@dataclass(frozen=True)
class Survey:
    """A vhost with its groups, worked out once for every look at the same snapshot.

    `rest` holds by QUEUES and EXCHANGES the ids that belong to no group, and by MISSING those
    that are named and not there.
    """

    snapshot: Snapshot
    definitions: Definitions
    groups: Sequence[Group]
    arrows: Sequence[Edge]
    owners: Mapping[str, str]
    rest: Mapping[str, frozenset[str]]
    marks: Mapping[str, str]

    def own(self, group: Group) -> frozenset[str]:
        """The members that are drawn with it and no other."""
        return frozenset(member for member in group.members if self.owners[member] == group.key)

    def extra_edges(self, ids: Collection[str]) -> list[Edge]:
        """The arrows of forwarders to and from these."""
        extra_edges = (edge for group in self.groups for edge in group.extra_edges)
        return [edge for edge in extra_edges if edge.source in ids or edge.target in ids]


def survey(snapshot: Snapshot, groups: Sequence[Group]) -> Survey:
    """Group everything except Delayboard's own taps and probe queues."""
    definitions = snapshot.definitions.without_taps().without_probes()
    arrows = [*_arrows(definitions), *(edge for group in groups for edge in group.extra_edges)]
    owners = {member: group.key for group in reversed(groups) for member in group.members}
    # The broker's own exchanges count as soon as an arrow touches them.
    ends = {end for edge in arrows for end in (edge.source, edge.target)}
    exchanges = {f"exchange/{exchange.name}" for exchange in definitions.exchanges}
    queues = {f"queue/{queue.name}" for queue in definitions.queues}
    unused = {i for i in exchanges - ends if i.startswith("exchange/amq.")}
    rest = {
        QUEUES: frozenset(queues - owners.keys()),
        EXCHANGES: frozenset(exchanges - unused - owners.keys()),
        MISSING: frozenset(ends - exchanges - queues - owners.keys()),
    }
    owners |= {member: key for key, members in rest.items() for member in members}
    return Survey(snapshot, definitions, groups, arrows, owners, rest, snapshot_marks(snapshot))


def part(definitions: Definitions, ids: Collection[str]) -> Definitions:
    """These exchanges and queues with the bindings at them and what is at the other ends, and the
    queues that die into them, or by name into one of them."""
    names = {kind: {name_of(i) for i in ids if i.startswith(kind)} for kind in ("exch", "queue")}
    bindings = []
    for one in definitions.bindings:
        ends = names["queue" if one.destination_is_queue else "exch"]
        bindings += [one] if one.source in names["exch"] or one.destination in ends else []
    queues = names["queue"] | {b.destination for b in bindings if b.destination_is_queue}
    dying = [one for name in names["exch"] for one in definitions.dying_into(name)]
    by_name = definitions.dying_into("")
    dying += [one for one in by_name if one.dead_letter_routing_key in names["queue"]]
    queues |= {one.name for one in dying}
    exchanges = names["exch"] | {b.source for b in bindings}
    exchanges |= {b.destination for b in bindings if not b.destination_is_queue}
    return Definitions(
        frozenset(exchange for exchange in definitions.exchanges if exchange.name in exchanges),
        frozenset(queue for queue in definitions.queues if queue.name in queues),
        frozenset(bindings),
    )


def name_of(member: str) -> str:
    return member.partition("/")[2]


def _arrows(definitions: Definitions) -> Iterable[Edge]:
    """Every arrow, those over the default exchange straight to the queue that they name."""
    for edge in edges_of(definitions):
        if edge.source == DEFAULT:
            continue
        if edge.target != DEFAULT:
            yield edge
        else:
            yield from (replace(edge, target=f"queue/{key}") for key in edge.keys)
