"""The destinations of a topology: unbound, and bound again."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from topology.models import Role, Topology
from topology.operations import provision
from topology.operations.restore_binding import restore_binding
from topology.views.topologies.shared import try_action, with_topology


@require_POST
@with_topology(Role.OPERATOR)
def topology_unbind(request: HttpRequest, topology: Topology) -> HttpResponse:
    destination = request.POST.get("destination", "")

    def unbind() -> str:
        key, typed = request.POST.get("routing_key", ""), request.POST.get("name", "").strip()
        provision.unbind(request.user, topology, key, destination, typed_name=typed)
        return f"{destination} is no longer a destination of this topology."

    return try_action(request, topology, unbind, "Destination not unbound.")


@require_POST
@with_topology(Role.OPERATOR)
def topology_restore(request: HttpRequest, topology: Topology) -> HttpResponse:
    destination = request.POST.get("destination", "")

    def restore() -> str:
        return restore_binding(request.user, topology, destination).sentence

    return try_action(request, topology, restore, "Binding not restored.")
