"""A topology's definition for other tools, without a request to the broker."""

from __future__ import annotations

import json

from topology.definitions import Definitions
from topology.exports.kubernetes import as_kubernetes
from topology.exports.permissions import as_commands, of_consumer, of_delayboard, of_publisher
from topology.exports.raw_definitions import raw_definitions
from topology.exports.terraform import as_terraform
from topology.models import Topology


def export_topology(topology: Topology, form: str, found: Definitions) -> str:
    """The topology without its tap, in one of FORMATS.

    `found` is what the broker has, for the names of free destinations. Raises NotExportable, and
    ParamsError for a row that no longer reads.
    """
    objects, vhost = topology.pattern.definitions(topology.parsed), topology.broker.vhost
    match form:
        case "definitions":
            return json.dumps(raw_definitions(objects), indent=2, ensure_ascii=False) + "\n"
        case "terraform":
            return as_terraform(objects, vhost)
        case "kubernetes":
            return as_kubernetes(objects, vhost)
    return _permissions(topology, found)


def _permissions(topology: Topology, found: Definitions) -> str:
    pattern, params = topology.pattern, topology.parsed
    roles = (
        ("publisher", of_publisher(pattern, params, found)),
        ("consumer", of_consumer(pattern, params, found)),
        ("delayboard", of_delayboard(pattern, params, found, topology.definitions)),
    )
    return as_commands(roles, topology.broker.vhost)


# Name -> label, and end of the file name.
FORMATS = {
    "definitions": ("RabbitMQ definitions", "json"),
    "terraform": ("Terraform", "tf"),
    "kubernetes": ("Kubernetes topology operator", "yaml"),
    "permissions": ("Least permissions", "sh"),
}
