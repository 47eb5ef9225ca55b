"""The destinations of a topology: unbound, and bound again."""

from __future__ import annotations

from django.http import HttpRequest

from topology.models import Topology
from topology.operations import provision
from topology.operations.restore_binding import restore_binding
from topology.views.topologies.shared import topology_action


@topology_action("Destination not unbound.")
def topology_unbind(request: HttpRequest, topology: Topology) -> str:
    key, destination = (request.POST.get(name, "") for name in ("routing_key", "destination"))
    typed = request.POST.get("name", "").strip()
    provision.unbind(request.user, topology, key, destination, typed_name=typed)
    return f"{destination} is no longer a destination of this topology."


@topology_action("Binding not restored.")
def topology_restore(request: HttpRequest, topology: Topology) -> str:
    return restore_binding(request.user, topology, request.POST.get("destination", "")).sentence
