"""What was found in a broker that Delayboard did not build, and adopting it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
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
from topology.definitions import Binding, BrokerObject, Identity, Queue
from topology.graph.build import build
from topology.models import Broker, Role, State, Topology
from topology.operations import adopt
from topology.operations.ownership import Refusal
from topology.patterns.names import describe_invisible
from topology.patterns.pattern import ParamsError, Use
from topology.patterns.table import KINDS
from topology.provisioning.plan import title
from topology.provisioning.recognition import Found, Recognition, recognize
from topology.snapshot import Snapshot
from topology.views.background import SnapshotResults, Worked
from topology.views.diagram import Diagram, draw, draw_graph

PAGE = 50
_results: SnapshotResults[Recognition] = SnapshotResults()


@require_safe
@access.with_broker(Role.VIEWER)
def discovered(request: HttpRequest, broker: Broker) -> HttpResponse:
    known = snapshots.fresh(broker)
    wanted = DiscoveredFilter(
        request.GET.get("kind", ""),
        request.GET.get("name", ""),
        request.GET.get("q", "").strip().casefold(),
    )
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
    """The recognition; of a virtual host with very much in it computed beside this request, None
    until it is done.
    """
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
    ours: set[Identity] = set()
    for row in Topology.objects.filter(broker=broker).exclude(state=State.DELETED):
        # A row that no longer reads says so on its own page.
        with suppress(ParamsError):
            ours |= {obj.identity for obj in row.pattern.definitions(row.parsed)}
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
        **show_unmanaged(
            [obj for obj in recognition.foreign if obj.identity not in ours], snapshot, wanted
        ),
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
    """Draw the use as the page of its topology would, or what it claims where no parameters rebuild
    it.
    """
    use = one.use
    if use.params is not None:
        texts = KINDS[use.kind].store(use.params)
        return draw(Topology(broker=broker, kind=use.kind, name=use.name, params=texts), snapshot)
    part = replace(snapshot, definitions=snapshot.definitions.only(use.claims))
    graph = build(part, beside=snapshot.definitions)
    return draw_graph(graph, f"Discovered: {use.name}", "found")


@dataclass(frozen=True)
class DiscoveredFilter:
    """What a page's address asks for: one kind, names that hold a text.

    `name` is that of one use alone, with its diagram.
    """

    kind: str = ""
    name: str = ""
    text: str = ""

    def holds(self, found: Found) -> bool:
        if self.kind and found.use.kind != self.kind:
            return False
        if self.name:
            return found.use.name == self.name
        return self._fits([found.use.name, *found.queues])

    def holds_use(self, use: Use) -> bool:
        """Whether the use holds messages, as `holds`, by what it would claim."""
        queues = [identity[1] for identity in use.claims if identity[0] == "queue"]
        return self.kind in ("", use.kind) and self._fits([use.name, *queues])

    def matches_object(self, obj: BrokerObject) -> bool:
        names = (
            (obj.source, obj.destination, obj.routing_key)
            if isinstance(obj, Binding)
            else (obj.name,)
        )
        return self._fits(names)

    def _fits(self, names: Iterable[str]) -> bool:
        return not self.text or any(self.text in name.casefold() for name in names)


@dataclass(frozen=True)
class UnmanagedObject:
    """An unmanaged object; `messages` of a queue, None where not counted."""

    title: str
    kind: str
    messages: int | None
    invisible: str


@dataclass(frozen=True)
class Label:
    """A name, and what of it nobody sees."""

    name: str

    @property
    def invisible(self) -> str:
        return describe_invisible(self.name)


def show_unmanaged(
    objects: Sequence[BrokerObject], snapshot: Snapshot, wanted: DiscoveredFilter
) -> dict[str, Any]:
    matching = [obj for obj in objects if wanted.matches_object(obj)]
    return {
        "unmanaged": [_unmanaged_object(obj, snapshot) for obj in matching[:PAGE]],
        "foreign_total": len(matching),
        "foreign_all": len(objects),
        "foreign_counts": sorted(Counter(obj.identity[0] for obj in objects).items()),
    }


def _unmanaged_object(obj: BrokerObject, snapshot: Snapshot) -> UnmanagedObject:
    numbers = snapshot.numbers.get(obj.name) if isinstance(obj, Queue) else None
    hidden = "" if isinstance(obj, Binding) else describe_invisible(obj.name)
    return UnmanagedObject(
        title(obj), obj.identity[0], numbers.messages if numbers else None, hidden
    )
