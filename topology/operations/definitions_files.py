"""Topologies to files of other tools, and exported definitions to planned topologies.

Neither makes a request to the broker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topology import audit
from topology.broker.management.definitions_file import read_export
from topology.definitions import Definitions
from topology.exports.permissions import (
    Permissions,
    as_commands,
    of_consumer,
    of_delayboard,
    of_publisher,
)
from topology.exports.resources import as_kubernetes, as_terraform, raw_definitions
from topology.models import Broker, State, Topology
from topology.operations.ownership import Refusal
from topology.operations.topology_rows import User, create_topology
from topology.patterns.table import KINDS
from topology.provisioning.recognition import recognize
from topology.snapshot import Snapshot


def export_topology(topology: Topology, form: str, found: Definitions) -> str:
    """The topology without its tap, in one of FORMATS.

    `found` is what the broker has, for the names of free destinations. Raises NotExportable, and
    ParamsError for a row that no longer reads.
    """
    whole, vhost = topology.pattern.definitions(topology.parsed), topology.broker.vhost
    objects = whole.without(one.identity for one in whole.exchanges if one.is_predeclared)
    match form:
        case "definitions":
            return json.dumps(raw_definitions(objects), indent=2, ensure_ascii=False) + "\n"
        case "terraform":
            return as_terraform(objects, vhost)
        case "kubernetes":
            return as_kubernetes(objects, vhost)
    return _permissions(topology, found, declares=form == DECLARING)


def _permissions(topology: Topology, found: Definitions, *, declares: bool) -> str:
    """The permissions file. Delayboard's are for all topologies of the virtual host: a user has one
    set there.
    """
    pattern, params = topology.pattern, topology.parsed
    delayboard = Permissions()
    for row in {topology, *topology.broker.topologies.exclude(state=State.DELETED)}:
        delayboard.add(of_delayboard(row.pattern, row.parsed, found, row.definitions))
    roles = (
        ("publisher", of_publisher(pattern, params, found, declares=declares)),
        ("consumer", of_consumer(pattern, params, found, declares=declares)),
        ("delayboard", delayboard),
    )
    return as_commands(roles, topology.broker.vhost)


DECLARING = "permissions-declaring"
# Format -> label, and end of the file name.
FORMATS = {
    "definitions": ("RabbitMQ definitions", "json"),
    "terraform": ("Terraform", "tf"),
    "kubernetes": ("Kubernetes topology operator", "yaml"),
    "permissions": ("Least permissions", "sh"),
    DECLARING: ("Least permissions for clients that declare", "sh"),
}


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


def make_import_record(imported: Imported) -> dict[str, Any]:
    """What the API answers, and the command prints."""
    return {
        "planned": [{"topology": one.slug, "kind": one.kind} for one in imported.planned],
        "skipped": list(imported.skipped),
        "sentence": imported.sentence,
    }


def _choose(snapshots: Mapping[str, Snapshot], vhost: str | None) -> Snapshot:
    """Raises Refusal."""
    names = ", ".join(f"“{name}”" for name in snapshots)
    if vhost is None and len(snapshots) == 1:
        return next(iter(snapshots.values()))
    if vhost is None or vhost not in snapshots:
        raise Refusal(f"Choose one of the virtual hosts in the file: {names}.")
    return snapshots[vhost]
