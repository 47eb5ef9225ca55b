"""The objects of a broker that belong to no topology."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from topology.definitions import Binding, Identity, Queue, Thing
from topology.models import Broker, State, Topology
from topology.patterns.names import describe_invisible
from topology.patterns.pattern import ParamsError
from topology.provisioning.plan import title
from topology.provisioning.recognition import Recognition
from topology.snapshot import Snapshot
from topology.views.brokers.discovered_filter import DiscoveredFilter

PAGE = 50


@dataclass(frozen=True)
class UnmanagedObject:
    """A thing that belongs to nothing known; `messages` of a queue, None where not counted."""

    title: str
    kind: str
    messages: int | None
    invisible: str


@dataclass(frozen=True)
class Label:
    """A name, and what of it nobody sees."""

    name: str

    @property
    def invisible(self) -> str:
        return describe_invisible(self.name)


def find_unmanaged(broker: Broker, recognition: Recognition) -> list[Thing]:
    """What no use claims, and no topology of ours that was not recognized, or not whole."""
    ours: set[Identity] = set()
    for row in Topology.objects.filter(broker=broker).exclude(state=State.DELETED):
        # A row that no longer reads says so on its own page.
        with suppress(ParamsError):
            ours |= {thing.identity for thing in row.pattern.definitions(row.parsed)}
    return [thing for thing in recognition.foreign if thing.identity not in ours]


def show_unmanaged(
    things: Sequence[Thing], snapshot: Snapshot, wanted: DiscoveredFilter
) -> dict[str, Any]:
    matching = [thing for thing in things if wanted.matches_object(thing)]
    return {
        "unmanaged": [_unmanaged_object(thing, snapshot) for thing in matching[:PAGE]],
        "foreign_total": len(matching),
        "foreign_all": len(things),
        "foreign_counts": _count_by_kind(things),
    }


def _unmanaged_object(thing: Thing, snapshot: Snapshot) -> UnmanagedObject:
    numbers = snapshot.numbers.get(thing.name) if isinstance(thing, Queue) else None
    hidden = "" if isinstance(thing, Binding) else describe_invisible(thing.name)
    return UnmanagedObject(
        title(thing), thing.identity[0], numbers.messages if numbers else None, hidden
    )


def _count_by_kind(things: Sequence[Thing]) -> list[tuple[str, int]]:
    counts = Counter(thing.identity[0] for thing in things)
    return sorted(counts.items())
