"""Exported definitions -> planned topologies, without a request to the broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topology import audit
from topology.broker.management.definitions_file import read_export
from topology.models import Broker, Topology
from topology.operations.ownership import Refusal
from topology.operations.topology_rows import User, create_topology
from topology.patterns.table import KINDS
from topology.provisioning.recognition import recognize
from topology.snapshot import Snapshot


@dataclass(frozen=True)
class Imported:
    """The new topologies, sentences on excluded ones, and the number of objects without a
    pattern."""

    planned: tuple[Topology, ...]
    skipped: tuple[str, ...]
    foreign: int

    @property
    def sentence(self) -> str:
        number = len(self.planned)
        planned = f"{number} topolog{'y' if number == 1 else 'ies'} planned"
        rest = f" {self.foreign} objects of the file belong to no pattern." if self.foreign else ""
        return f"{planned}, {len(self.skipped)} skipped. The broker is not changed.{rest}"


def import_definitions(
    user: User, broker: Broker, document: Any, vhost: str | None = None
) -> Imported:
    """Plan each topology that the definitions have; applying it is another step.

    `vhost` names one of several. Raises NotDefinitions, and Refusal for a vhost that is not there
    or not named.
    """
    recognition = recognize(_choose(read_export(document), vhost))
    planned, skipped = [], []
    with audit.recorded(user, "definitions imported", broker=broker, what=broker.name):
        for found in recognition.found:
            use = found.use
            if use.params is None:
                skipped.append(f"No parameters of the pattern {use.kind} produce “{use.name}”.")
                continue
            if not KINDS[use.kind].IS_CREATED:
                title = KINDS[use.kind].EXPLANATION.title
                skipped.append(
                    f"Delayboard creates no topology of the pattern {title}: “{use.name}”."
                )
                continue
            try:
                planned.append(create_topology(user, broker, use.kind, use.params))
            except Refusal as refusal:
                skipped.append(str(refusal))
    return Imported(tuple(planned), tuple(skipped), len(recognition.foreign))


def _choose(snapshots: Mapping[str, Snapshot], vhost: str | None) -> Snapshot:
    """Raises Refusal."""
    names = ", ".join(f"“{name}”" for name in snapshots)
    if vhost is None and len(snapshots) == 1:
        return next(iter(snapshots.values()))
    if vhost is None or vhost not in snapshots:
        raise Refusal(f"Choose one of the virtual hosts in the file: {names}.")
    return snapshots[vhost]
