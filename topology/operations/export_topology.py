"""A topology's definition for other tools, without a request to the broker."""

from __future__ import annotations

import json

from topology.definitions import Definitions
from topology.exports.permissions import (
    Permissions,
    as_commands,
    of_consumer,
    of_delayboard,
    of_publisher,
)
from topology.exports.resources import as_kubernetes, as_terraform, raw_definitions
from topology.models import State, Topology


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
    """Those of Delayboard are for all topologies of the virtual host: a user has one set there."""
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
# Name -> label, and end of the file name.
FORMATS = {
    "definitions": ("RabbitMQ definitions", "json"),
    "terraform": ("Terraform", "tf"),
    "kubernetes": ("Kubernetes topology operator", "yaml"),
    "permissions": ("Least permissions", "sh"),
    DECLARING: ("Least permissions for clients that declare", "sh"),
}
