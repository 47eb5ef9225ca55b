"""Probes of a topology, enabled and disabled on its page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from topology.models import Role, Topology
from topology.operations.probes import start_probes, stop_probes
from topology.views.topologies.shared import try_action, with_topology


@require_POST
@with_topology(Role.OPERATOR)
def topology_probes(request: HttpRequest, topology: Topology) -> HttpResponse:
    def change() -> str:
        if request.POST.get("probes") != "on":
            stop_probes(request.user, topology)
            return (
                "Probes disabled. The worker removes the probe queue after the last probe has "
                "arrived."
            )
        given = request.POST.get("minutes", "").strip()
        minutes = int(given) if given.isascii() and given.isdigit() and len(given) < 6 else 0
        start_probes(request.user, topology, minutes=minutes)
        return f"Probes enabled, one every {'minute' if minutes == 1 else f'{minutes} minutes'}."

    return try_action(request, topology, change, "Probes not changed.")
