"""Probes of a topology, enabled and disabled on its page."""

from __future__ import annotations

from django.http import HttpRequest

from topology.models import Topology
from topology.operations.probes import start_probes, stop_probes
from topology.views.topologies.shared import topology_action


@topology_action("Probes not changed.")
def topology_probes(request: HttpRequest, topology: Topology) -> str:
    if request.POST.get("probes") != "on":
        stop_probes(request.user, topology)
        return (
            "Probes disabled. The worker removes the probe queue after the last probe has arrived."
        )
    given = request.POST.get("minutes", "").strip()
    minutes = int(given) if given.isascii() and given.isdigit() and len(given) < 6 else 0
    start_probes(request.user, topology, minutes=minutes)
    return f"Probes enabled, one every {'minute' if minutes == 1 else f'{minutes} minutes'}."
