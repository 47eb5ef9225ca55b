"""The pages of one topology: who may open it, an action and its message, and its tabs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST, require_safe

from topology import access, snapshots
from topology.broker.errors import BrokerError
from topology.definitions import Definitions
from topology.delays import format_span
from topology.models import QueueReplacement, Role, Topology
from topology.operations import provision, replace_queue, replace_tap
from topology.operations.definitions_files import FORMATS
from topology.operations.destinations import destinations_of, obstacle_to
from topology.operations.finding_rows import with_reports
from topology.operations.ownership import Refusal
from topology.operations.probes import probe_problem
from topology.patterns.client_code import list_examples
from topology.patterns.pattern import MADE_UP
from topology.provisioning.plan import title
from topology.snapshot import Snapshot
from topology.views.brokers.queues import queue_lines
from topology.views.diagram import draw
from topology.views.findings import lines_of
from topology.views.redirect_back import next_of


def with_topology(role: Role, *, changes: bool = True) -> Callable[[access.View], access.View]:
    """A view of `/topologies/<slug>/`: hands it the Topology, if the user holds the role.

    `changes` as of `access.with_broker`.
    """

    def decorate(view: access.View) -> access.View:
        @wraps(view)
        def guarded(request: HttpRequest, slug: str) -> HttpResponse:
            topology = get_object_or_404(Topology.objects.select_related("broker"), slug=slug)
            access.require(
                request.user, topology.broker, role, request=request if changes else None
            )
            return view(request, topology)

        return guarded

    return decorate


def head_context(request: HttpRequest, topology: Topology) -> dict[str, Any]:
    """What the head of the topology's page shows on every tab."""
    return {
        "topology": topology,
        "broker": topology.broker,
        "may_operate": access.may(request.user, topology.broker, Role.OPERATOR),
        "trace_query": _make_trace_query(topology),
        "first_delay": next(iter(topology.pattern.delays(topology.parsed)), None),
    }


def _make_trace_query(topology: Topology) -> str:
    """The first of its possible publishes, for the form that traces a route; "" where it has none
    that its broker can take as it is.
    """
    known = snapshots.latest(topology.broker_id)
    found = known.snapshot.definitions if known and known.snapshot else Definitions()
    for delay, target, _ in topology.pattern.trials(topology.parsed, found):
        route = topology.pattern.route(topology.parsed, delay, target)
        if target != MADE_UP and all(found.get(one.identity) for one in route.declares):
            query = {"exchange": route.exchange, "routing_key": route.routing_key}
            # The header that others read is only a guess of ours.
            is_guessed = topology.is_read_by_others
            now_ms = time.time_ns() // 1_000_000
            headers = route.headers if is_guessed else route.make_headers(now_ms)
            return f"?{urlencode({**query, 'headers': json.dumps(headers)} if headers else query)}"
    return ""


def topology_action(failure: str) -> Callable[[Callable[..., str]], access.View]:
    """A POST by an operator that shows the message it returns, or the failure with its reason."""

    def decorate(act: Callable[..., str]) -> access.View:
        @require_POST
        @with_topology(Role.OPERATOR)
        @wraps(act)
        def view(request: HttpRequest, topology: Topology) -> HttpResponse:
            try:
                messages.success(request, act(request, topology))
            except Refusal as refusal:
                messages.error(request, f"{failure} {refusal}")
            except BrokerError as error:
                return show_failure(request, topology, f"{failure} {error}")
            return return_to_page(request, topology)

        return view

    return decorate


def show_failure(request: HttpRequest, topology: Topology, sentence: str) -> HttpResponse:
    """Show the failure without reading the broker again that just did not answer."""
    messages.error(request, sentence)
    return redirect("topology:topology", slug=topology.slug)


def return_to_page(request: HttpRequest, topology: Topology) -> HttpResponse:
    snapshots.poll(topology.broker)
    page = reverse("topology:topology", args=[topology.slug])
    return redirect(next_of(request, page))


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
    """The parameters as (label, words); the header that others read is only a guess of ours."""
    if not topology.is_read_by_others:
        return topology.stated
    guessed = {field.label for field in topology.pattern.FIELDS if field.name == "due_header"}
    return [(label, "unknown" if label in guessed else words) for label, words in topology.stated]
