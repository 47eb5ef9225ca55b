"""What was found in a broker that Delayboard did not build, and adopting it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST, require_safe

from topology import access, snapshots
from topology.broker.errors import BrokerError
from topology.graph.build import build
from topology.models import Broker, Role, Topology
from topology.operations import adopt
from topology.operations.ownership import Refusal
from topology.patterns.names import describe_invisible
from topology.patterns.pattern import Use
from topology.patterns.table import KINDS
from topology.provisioning.recognition import Found, Recognition, recognize
from topology.snapshot import Snapshot
from topology.views.background import SnapshotResults, Worked
from topology.views.brokers.discovered_filter import DiscoveredFilter, read_filter
from topology.views.brokers.unmanaged_objects import PAGE, Label, find_unmanaged, show_unmanaged
from topology.views.diagram import Diagram, draw, draw_graph

_results: SnapshotResults[Recognition] = SnapshotResults()


@require_safe
@access.with_broker(Role.VIEWER)
def discovered(request: HttpRequest, broker: Broker) -> HttpResponse:
    known = snapshots.fresh(broker)
    wanted = read_filter(request)
    worked = recognize_snapshot(broker, known.snapshot) if known.snapshot else None
    context = {
        "broker": broker,
        "latest": known,
        "seen": worked.snapshot if worked else known.snapshot,
        "is_worked_out": worked is not None,
        "wanted": wanted,
        "invisible": describe_invisible(wanted.name) if wanted.name else "",
        "text": request.GET.get("q", "").strip(),
        "may_operate": access.may(request.user, broker, Role.OPERATOR),
        **(_make_context(broker, worked, wanted, request.GET.get("page", "1")) if worked else {}),
    }
    return render(request, "topology/discovered.html", context)


@require_POST
@access.with_broker(Role.OPERATOR)
def discovered_adopt(request: HttpRequest, broker: Broker) -> HttpResponse:
    kind, name = request.POST.get("kind", ""), request.POST.get("name", "")
    here = reverse("topology:discovered", args=[broker.slug])
    try:
        topology, plan = adopt.adopt(request.user, broker, kind, name)
    except (Refusal, BrokerError) as error:
        messages.error(request, f"Topology not adopted. {error}")
        return redirect(f"{here}?{urlencode({'kind': kind, 'name': name})}")
    lacks = "" if plan.is_empty else " The plan lists the missing objects."
    messages.success(request, f"Topology adopted. Delayboard changed nothing in the broker.{lacks}")
    return redirect("topology:topology", slug=topology.slug)


def recognize_snapshot(broker: Broker, snapshot: Snapshot) -> Worked[Recognition] | None:
    """Of a vhost with very much in it, beside this request; None while that is not done."""
    return _results.get(broker, snapshot, lambda: recognize(snapshot))


def _make_context(
    broker: Broker, worked: Worked[Recognition], wanted: DiscoveredFilter, number: str
) -> dict[str, Any]:
    recognition, snapshot = worked.value, worked.snapshot
    page = Paginator([f for f in recognition.found if wanted.holds(f)], PAGE).get_page(number)
    shown = list(page.object_list)
    shown_topologies = adopt.match_managed(broker, shown, snapshot)
    overlapping = [use for use in recognition.overlapping if wanted.holds_use(use)]
    one = shown_topologies[0] if wanted.name and shown_topologies else None
    return {
        "recognition": recognition,
        # Kind, its title, how many were found.
        "kinds": [
            (kind, KINDS[kind].EXPLANATION.title, count)
            for kind, count in Counter(one.use.kind for one in recognition.found).items()
        ],
        "shown_topologies": shown_topologies,
        "page": page,
        "one": one,
        "diagram": _draw_use(broker, shown[0], snapshot) if wanted.name and shown else None,
        "overlapping": [(_kind_title(use), Label(use.name)) for use in overlapping[:PAGE]],
        "overlapping_total": len(overlapping),
        **_list_served(recognition, wanted),
        **show_unmanaged(find_unmanaged(broker, recognition), snapshot, wanted),
    }


def _kind_title(use: Use) -> str:
    return KINDS[use.kind].EXPLANATION.title


def _list_served(recognition: Recognition, wanted: DiscoveredFilter) -> dict[str, Any]:
    """The queues that something recognized works for, with its name and kind."""
    matching = [
        one
        for one in recognition.served
        if wanted.kind in ("", one.use.kind) and wanted.matches_object(one.queue)
    ]
    shown = [
        (Label(one.queue.name), Label(one.use.name), _kind_title(one.use))
        for one in matching[:PAGE]
    ]
    return {"served": shown, "served_total": len(matching)}


def _draw_use(broker: Broker, one: Found, snapshot: Snapshot) -> Diagram:
    """As its topology's page would have it, or what it claims where no parameters rebuild it."""
    use = one.use
    if use.params is not None:
        texts = KINDS[use.kind].store(use.params)
        return draw(Topology(broker=broker, kind=use.kind, name=use.name, params=texts), snapshot)
    part = replace(snapshot, definitions=snapshot.definitions.only(use.claims))
    graph = build(part, beside=snapshot.definitions)
    return draw_graph(graph, f"Discovered: {use.name}", "found")
