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
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST, require_safe

from topology import access, latest
from topology.broker.errors import BrokerError
from topology.definitions import Binding, Identity, Queue, Thing
from topology.graph.build import build, facts
from topology.graph.layout.dot import arrange
from topology.graph.svg import draw as draw_svg
from topology.models import Broker, Role, State, Topology
from topology.operations import adopt
from topology.operations.ownership import Refusal
from topology.patterns.advice import advise
from topology.patterns.names import describe_invisible
from topology.patterns.pattern import ParamsError, Use
from topology.patterns.table import PATTERNS
from topology.provisioning.plan import title
from topology.provisioning.recognition import Found, Recognition, recognize
from topology.snapshot import Snapshot
from topology.views.background import SnapshotResults, Worked
from topology.views.diagram import Picture, draw

PAGE = 50

_results: SnapshotResults[Recognition] = SnapshotResults()


@dataclass(frozen=True)
class Wanted:
    """What a page's address asks for: one kind, names that hold a text.

    `name` is that of one use alone, with its picture.
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
        """As `holds` does, by what it would claim."""
        queues = [identity[1] for identity in use.claims if identity[0] == "queue"]
        return self.kind in ("", use.kind) and self._fits([use.name, *queues])

    def holds_thing(self, thing: Thing) -> bool:
        names = (
            (thing.source, thing.destination, thing.routing_key)
            if isinstance(thing, Binding)
            else (thing.name,)
        )
        return self._fits(names)

    def _fits(self, names: Iterable[str]) -> bool:
        return not self.text or any(self.text in name.casefold() for name in names)


@dataclass(frozen=True)
class Stranger:
    """A thing that belongs to nothing known; `messages` of a queue, None where not counted."""

    title: str
    kind: str
    messages: int | None
    unseen: str


@dataclass(frozen=True)
class Label:
    """A name, and what of it nobody sees."""

    name: str

    @property
    def unseen(self) -> str:
        return describe_invisible(self.name)


@require_safe
@access.with_broker(Role.VIEWER)
def discovered(request: HttpRequest, broker: Broker) -> HttpResponse:
    known = latest.fresh(broker)
    wanted = _wanted(request)
    worked = recognize_snapshot(broker, known.snapshot) if known.snapshot else None
    context = {
        "broker": broker,
        "latest": known,
        "seen": worked.snapshot if worked else known.snapshot,
        "is_worked_out": worked is not None,
        "wanted": wanted,
        "unseen": describe_invisible(wanted.name) if wanted.name else "",
        "text": request.GET.get("q", "").strip(),
        "may_operate": access.may(request.user, broker, Role.OPERATOR),
        **(_seen(broker, worked, wanted, request.GET.get("page", "1")) if worked else {}),
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


def _wanted(request: HttpRequest) -> Wanted:
    return Wanted(
        request.GET.get("kind", ""),
        request.GET.get("name", ""),
        request.GET.get("q", "").strip().casefold(),
    )


def recognize_snapshot(broker: Broker, snapshot: Snapshot) -> Worked[Recognition] | None:
    """Of a vhost with very much in it, beside this request; None while that is not done."""
    return _results.get(broker, snapshot, lambda: recognize(snapshot))


def _seen(
    broker: Broker, worked: Worked[Recognition], wanted: Wanted, number: str
) -> dict[str, Any]:
    recognition, snapshot = worked.value, worked.snapshot
    page = Paginator([f for f in recognition.found if wanted.holds(f)], PAGE).get_page(number)
    shown = list(page.object_list)
    sightings = adopt.sightings(broker, shown, snapshot)
    overlapping = [use for use in recognition.overlapping if wanted.holds_use(use)]
    one = sightings[0] if wanted.name and sightings else None
    use = one.found.use if one else None
    return {
        "advice": use and use.params and advise(use.kind, use.params, snapshot.version_tuple),
        "recognition": recognition,
        "kinds": _kinds(recognition),
        "sightings": sightings,
        "page": page,
        "one": one,
        "picture": _picture(broker, shown[0], snapshot) if wanted.name and shown else None,
        "overlapping": [(_kind_title(use), Label(use.name)) for use in overlapping[:PAGE]],
        "overlapping_total": len(overlapping),
        **_served(recognition, wanted),
        **_foreign(_foreign_things(broker, recognition), snapshot, wanted),
    }


def _kinds(recognition: Recognition) -> list[tuple[str, str, int]]:
    """Kind, its title, how many were found."""
    counts = Counter(one.use.kind for one in recognition.found)
    return [(kind, PATTERNS[kind].EXPLANATION.title, count) for kind, count in counts.items()]


def _kind_title(use: Use) -> str:
    return PATTERNS[use.kind].EXPLANATION.title


def _served(recognition: Recognition, wanted: Wanted) -> dict[str, Any]:
    """The queues that something recognized works for, with its name and kind."""
    matching = [
        one
        for one in recognition.served
        if wanted.kind in ("", one.use.kind) and wanted.holds_thing(one.queue)
    ]
    shown = [
        (Label(one.queue.name), Label(one.use.name), _kind_title(one.use))
        for one in matching[:PAGE]
    ]
    return {"served": shown, "served_total": len(matching)}


def _foreign_things(broker: Broker, recognition: Recognition) -> list[Thing]:
    """What no use claims, and no topology of ours that was not recognized, or not whole."""
    ours: set[Identity] = set()
    for row in Topology.objects.filter(broker=broker).exclude(state=State.DELETED):
        # A row that no longer reads says so on its own page.
        with suppress(ParamsError):
            ours |= {thing.identity for thing in row.pattern.definitions(row.parsed)}
    return [thing for thing in recognition.foreign if thing.identity not in ours]


def _foreign(things: Sequence[Thing], snapshot: Snapshot, wanted: Wanted) -> dict[str, Any]:
    matching = [thing for thing in things if wanted.holds_thing(thing)]
    return {
        "strangers": [_stranger(thing, snapshot) for thing in matching[:PAGE]],
        "foreign_total": len(matching),
        "foreign_all": len(things),
        "foreign_counts": _counted(things),
    }


def _stranger(thing: Thing, snapshot: Snapshot) -> Stranger:
    numbers = snapshot.numbers.get(thing.name) if isinstance(thing, Queue) else None
    hidden = "" if isinstance(thing, Binding) else describe_invisible(thing.name)
    return Stranger(title(thing), thing.identity[0], numbers.messages if numbers else None, hidden)


def _counted(things: Sequence[Thing]) -> list[tuple[str, int]]:
    counts = Counter(thing.identity[0] for thing in things)
    return sorted(counts.items())


def _picture(broker: Broker, one: Found, snapshot: Snapshot) -> Picture:
    """As its topology's page would have it, or what it claims where no parameters rebuild it."""
    use = one.use
    if use.params is not None:
        texts = PATTERNS[use.kind].store(use.params)
        return draw(Topology(broker=broker, kind=use.kind, name=use.name, params=texts), snapshot)
    part = replace(snapshot, definitions=snapshot.definitions.only(use.claims))
    graph = build(part, beside=snapshot.definitions)
    layout = arrange(graph)
    # topology.graph.svg escapes every text that it writes.
    svg = SafeString(draw_svg(layout, title=f"Discovered: {use.name}", id="found"))
    return Picture(svg, facts(graph), layout.note)
