"""The tabs of a topology: diagram, plan, destinations, definition, code, settings."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from topology import access, snapshots
from topology.definitions import Definitions
from topology.delays import format_span
from topology.models import QueueReplacement, Role, Topology
from topology.operations import provision, replace_queue, replace_tap
from topology.operations.definitions_files import FORMATS
from topology.operations.destinations import destinations_of, obstacle_to
from topology.operations.finding_rows import with_reports
from topology.operations.probes import probe_problem
from topology.patterns.client_code import list_examples
from topology.provisioning.plan import title
from topology.snapshot import Snapshot
from topology.views.brokers.queues import queue_lines
from topology.views.diagram import draw
from topology.views.findings import lines_of
from topology.views.topologies.shared import head_context, with_topology


def _tab(name: str) -> access.View:
    """The view of one tab of a topology's page."""

    @require_safe
    @with_topology(Role.VIEWER)
    def view(request: HttpRequest, topology: Topology) -> HttpResponse:
        return _topology_page(request, topology, name)

    return view


topology = _tab("overview")
topology_destinations = _tab("destinations")
topology_definition = _tab("definition")
topology_code = _tab("code")
topology_settings = _tab("settings")


def _topology_page(request: HttpRequest, topology: Topology, tab: str) -> HttpResponse:
    known = snapshots.fresh(topology.broker)
    seen = known.snapshot and with_reports(topology.broker, known.snapshot)
    longest = topology.pattern.longest(topology.parsed)
    context = {
        **head_context(request, topology),
        "tab": tab,
        "latest": known,
        "diagram": (
            draw(topology, seen, all_levels=request.GET.get("levels") == "all")
            if tab == "overview"
            else None
        ),
        "example": topology.pattern.consumer_example(topology.parsed),
        "clients": list_examples(topology.pattern, topology.parsed),
        "targets": list(topology.pattern.targets(topology.parsed)),
        "explanation": topology.pattern.EXPLANATION,
        "binds": topology.pattern.destinations(topology.parsed, Definitions()) is not None,
        # "" where new messages cannot be delayed.
        "longest_delay": format_span(longest) if longest else "",
        "stated": _list_parameters(topology),
        "exports": [(form, label) for form, (label, _) in FORMATS.items()],
        "replacing": QueueReplacement.open_of(topology).select_related("work"),
    }
    if known.snapshot and seen:
        context |= _describe_state(topology, known.snapshot)
        context["queues"] = queue_lines(seen, provision.queues_of(topology, seen))
        if tab == "settings":
            context["probe_problem"] = probe_problem(topology, known.snapshot)
    return render(request, "topology/topology.html", context)


def _describe_state(topology: Topology, snapshot: Snapshot) -> dict[str, Any]:
    """What of it exists, and what a teardown would do."""
    teardown = provision.teardown_for(topology, snapshot)
    found = lines_of(topology, snapshot)
    replacements = replace_queue.replacements_for(topology, snapshot)
    return {
        "obstacle": provision.obstacle_for(topology, snapshot),
        "plan": provision.plan_for(topology, snapshot),
        "tap_is_on_one_node": replace_tap.is_on_one_node(topology, snapshot),
        "replacements": replacements,
        "replaceable": sum(not one.refusal for one in replacements),
        "teardown": teardown,
        "deletes": [title(obj) for obj in teardown.deletes],
        "keeps": [title(obj) for obj in teardown.keeps],
        "destinations": destinations_of(topology, snapshot),
        "missing": [(row, obstacle_to(row, snapshot)) for row in topology.missing_bindings.all()],
        "owned": topology.owned_identities,
        "findings": found,
        "is_computing_findings": found is None,
        "remarks": topology.pattern.remarks(topology.parsed, snapshot.definitions),
    }


def _list_parameters(topology: Topology) -> list[tuple[str, str]]:
    """Its parameters as (label, words); the header that others read is only a guess of ours."""
    if not topology.is_read_by_others:
        return topology.stated
    guessed = {field.label for field in topology.pattern.FIELDS if field.name == "due_header"}
    return [(label, "unknown" if label in guessed else words) for label, words in topology.stated]
