"""A topology's definition for other tools, without a request to the broker."""

from __future__ import annotations

import json
from collections.abc import Callable

from topology.definitions import Definitions
from topology.exports.kubernetes import as_kubernetes
from topology.exports.permissions import as_commands, of_consumer, of_delayboard, of_publisher
from topology.exports.raw_definitions import raw_definitions
from topology.exports.terraform import as_terraform
from topology.models import Topology

Write = Callable[[Topology, Definitions], str]


def export_topology(topology: Topology, form: str, found: Definitions) -> str:
    """The topology without its tap, in one of FORMATS.

    `found` is what the broker has, for the names of free destinations. Raises NotExportable, and
    ParamsError for a row that no longer reads.
    """
    _, _, write = FORMATS[form]
    return write(topology, found)


def _definitions(topology: Topology, found: Definitions) -> str:
    raw = raw_definitions(topology.pattern.definitions(topology.parsed))
    return json.dumps(raw, indent=2, ensure_ascii=False) + "\n"


def _terraform(topology: Topology, found: Definitions) -> str:
    return as_terraform(topology.pattern.definitions(topology.parsed), topology.broker.vhost)


def _kubernetes(topology: Topology, found: Definitions) -> str:
    return as_kubernetes(topology.pattern.definitions(topology.parsed), topology.broker.vhost)


def _permissions(topology: Topology, found: Definitions) -> str:
    pattern, params = topology.pattern, topology.parsed
    roles = (
        ("publisher", of_publisher(pattern, params, found)),
        ("consumer", of_consumer(pattern, params, found)),
        ("delayboard", of_delayboard(pattern, params, found, topology.definitions)),
    )
    return as_commands(roles, topology.broker.vhost)


# Name -> label, end of the file name, and what writes it.
FORMATS: dict[str, tuple[str, str, Write]] = {
    "definitions": ("RabbitMQ definitions", "json", _definitions),
    "terraform": ("Terraform", "tf", _terraform),
    "kubernetes": ("Kubernetes topology operator", "yaml", _kubernetes),
    "permissions": ("Least permissions", "sh", _permissions),
}
