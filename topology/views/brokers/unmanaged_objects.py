"""The objects of a broker that belong to no topology."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from topology.definitions import Binding, BrokerObject, Identity, Queue
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
    """An unmanaged object; `messages` of a queue, None where not counted."""

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


def find_unmanaged(broker: Broker, recognition: Recognition) -> list[BrokerObject]:
    """What no use claims, and no topology of ours that was not recognized, or not whole."""
    ours: set[Identity] = set()
    for row in Topology.objects.filter(broker=broker).exclude(state=State.DELETED):
        # A row that no longer reads says so on its own page.
        with suppress(ParamsError):
            ours |= {obj.identity for obj in row.pattern.definitions(row.parsed)}
    return [obj for obj in recognition.foreign if obj.identity not in ours]


def show_unmanaged(
    objects: Sequence[BrokerObject], snapshot: Snapshot, wanted: DiscoveredFilter
) -> dict[str, Any]:
    matching = [obj for obj in objects if wanted.matches_object(obj)]
    return {
        "unmanaged": [_unmanaged_object(obj, snapshot) for obj in matching[:PAGE]],
        "foreign_total": len(matching),
        "foreign_all": len(objects),
        "foreign_counts": sorted(Counter(obj.identity[0] for obj in objects).items()),
    }


def _unmanaged_object(obj: BrokerObject, snapshot: Snapshot) -> UnmanagedObject:
    numbers = snapshot.numbers.get(obj.name) if isinstance(obj, Queue) else None
    hidden = "" if isinstance(obj, Binding) else describe_invisible(obj.name)
    return UnmanagedObject(
        title(obj), obj.identity[0], numbers.messages if numbers else None, hidden
    )
