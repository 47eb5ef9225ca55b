"""A topology's part of a vhost as a picture and as the same facts in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from django.utils.safestring import SafeString

from topology.definitions import Binding, Definitions
from topology.graph.build import Fact, build, facts
from topology.graph.layout import arrange
from topology.graph.svg import draw as draw_svg
from topology.models import Topology
from topology.snapshot import Snapshot


@dataclass(frozen=True)
class Picture:
    """`note` says why it is drawn in a simpler way than usual, "" when it is not."""

    svg: SafeString
    facts: Sequence[Fact]
    note: str


def draw(topology: Topology, snapshot: Snapshot | None) -> Picture:
    """What exists of it and what is missing; without a snapshot only what should exist."""
    wanted = topology.pattern.definitions(topology.parsed)
    found = _part(snapshot, wanted) if snapshot else wanted
    graph = build(found, wanted=wanted)
    layout = arrange(graph)
    svg = draw_svg(layout, title=f"Topology {topology.name}", id=f"topology-{topology.pk}")
    # topology.graph.svg escapes every text that it writes.
    return Picture(SafeString(svg), facts(graph), layout.note)


def _part(snapshot: Snapshot, wanted: Definitions) -> Snapshot:
    """The topology's own things as they are, and what others have bound to them."""
    names = {thing.name for thing in wanted if not isinstance(thing, Binding)}
    there = snapshot.definitions
    bindings = [b for b in there.bindings if b.source in names or b.destination in names]
    ends = names | {end for b in bindings for end in (b.source, b.destination)}
    part = Definitions.of(
        [
            *(exchange for exchange in there.exchanges if exchange.name in ends),
            *(queue for queue in there.queues if queue.name in ends),
            *bindings,
        ]
    )
    return replace(snapshot, definitions=part)
