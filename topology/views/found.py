"""What was found in a broker that Delayboard did not build, and adopting it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST, require_safe

from topology import access, adopting, latest
from topology.broker.errors import BrokerError
from topology.definitions import Binding, Queue, Thing
from topology.graph.build import build, facts
from topology.graph.layout import arrange
from topology.graph.svg import draw as draw_svg
from topology.models import Broker, Role, Topology
from topology.paging import row_number
from topology.patterns import PATTERNS
from topology.provision import Refusal
from topology.provisioning.plan import title
from topology.provisioning.recognition import Found, Recognition, recognise
from topology.snapshot import Snapshot
from topology.views.picture import Picture, draw

PAGE = 50


@dataclass(frozen=True)
class Wanted:
    """What a page's address asks for: one kind, names that hold a text, rows from one on.

    `name` is that of one use alone, with its picture.
    """

    kind: str = ""
    name: str = ""
    text: str = ""
    first: int = 0

    def holds(self, found: Found) -> bool:
        if self.kind and found.use.kind != self.kind:
            return False
        if self.name:
            return found.use.name == self.name
        names = (found.use.name, *found.queues)
        return not self.text or any(self.text in name.casefold() for name in names)

    def holds_thing(self, thing: Thing) -> bool:
        names = (
            (thing.source, thing.destination, thing.routing_key)
            if isinstance(thing, Binding)
            else (thing.name,)
        )
        return not self.text or any(self.text in name.casefold() for name in names)


@dataclass(frozen=True)
class Stranger:
    """A thing that belongs to nothing known; `messages` of a queue, None where not counted."""

    title: str
    kind: str
    messages: int | None


@require_safe
@access.with_broker(Role.VIEWER)
def found(request: HttpRequest, broker: Broker) -> HttpResponse:
    known = latest.fresh(broker)
    wanted = _wanted(request)
    context = {
        "broker": broker,
        "latest": known,
        "wanted": wanted,
        "text": request.GET.get("q", "").strip(),
        "may_operate": access.may(request.user, broker, Role.OPERATOR),
        **(_seen(broker, known.snapshot, wanted) if known.snapshot else {}),
    }
    return render(request, "topology/found.html", context)


@require_POST
@access.with_broker(Role.OPERATOR)
def found_adopt(request: HttpRequest, broker: Broker) -> HttpResponse:
    kind, name = request.POST.get("kind", ""), request.POST.get("name", "")
    here = reverse("topology:found", args=[broker.slug])
    try:
        topology, plan = adopting.adopt(request.user, broker, kind, name)
    except (Refusal, BrokerError) as error:
        messages.error(request, f"Not adopted. {error}")
        return redirect(f"{here}?{urlencode({'kind': kind, 'name': name})}")
    lacks = "" if plan.is_empty else " Its plan says what a whole one would have besides."
    messages.success(request, f"Adopted: nothing was changed in the broker.{lacks}")
    return redirect("topology:topology", slug=topology.slug)


def _wanted(request: HttpRequest) -> Wanted:
    return Wanted(
        request.GET.get("kind", ""),
        request.GET.get("name", ""),
        request.GET.get("q", "").strip().casefold(),
        row_number(request.GET.get("from", "")) or 0,
    )


def _seen(broker: Broker, snapshot: Snapshot, wanted: Wanted) -> dict[str, Any]:
    recognition = recognise(snapshot)
    chosen = [one for one in recognition.found if wanted.holds(one)]
    shown = chosen[wanted.first : wanted.first + PAGE]
    sightings = adopting.sightings(broker, shown, snapshot)
    overlapping = list(islice(recognition.overlapping, PAGE))
    return {
        "recognition": recognition,
        "kinds": _kinds(recognition),
        "sightings": sightings,
        "total": len(chosen),
        "from_row": wanted.first + 1,
        "to_row": wanted.first + len(shown),
        "previous_row": max(0, wanted.first - PAGE) if wanted.first else None,
        "next_row": wanted.first + PAGE if wanted.first + PAGE < len(chosen) else None,
        "one": sightings[0] if wanted.name and sightings else None,
        "picture": _picture(broker, shown[0], snapshot) if wanted.name and shown else None,
        "overlapping": [(PATTERNS[use.kind].EXPLANATION.title, use) for use in overlapping],
        **_foreign(recognition, snapshot, wanted),
    }


def _kinds(recognition: Recognition) -> list[tuple[str, str, int]]:
    """Kind, its title, how many were found."""
    counts = Counter(one.use.kind for one in recognition.found)
    return [(kind, PATTERNS[kind].EXPLANATION.title, count) for kind, count in counts.items()]


def _foreign(recognition: Recognition, snapshot: Snapshot, wanted: Wanted) -> dict[str, Any]:
    matching = [thing for thing in recognition.foreign if wanted.holds_thing(thing)]
    return {
        "strangers": [_stranger(thing, snapshot) for thing in matching[:PAGE]],
        "foreign_total": len(matching),
        "foreign_counts": _counted(recognition.foreign),
    }


def _stranger(thing: Thing, snapshot: Snapshot) -> Stranger:
    numbers = snapshot.numbers.get(thing.name) if isinstance(thing, Queue) else None
    return Stranger(title(thing), thing.identity[0], numbers.messages if numbers else None)


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
    graph = build(part)
    layout = arrange(graph)
    # topology.graph.svg escapes every text that it writes.
    svg = SafeString(draw_svg(layout, title=f"Found: {use.name}", id="found"))
    return Picture(svg, facts(graph), layout.note)
