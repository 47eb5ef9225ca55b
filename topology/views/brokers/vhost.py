"""The diagram of a whole vhost: its topologies and what belongs to none, each opened by a link."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from topology import access, snapshots
from topology.graph.build import build
from topology.graph.edges import forwarder_edges
from topology.graph.vhost_cards import (
    REST,
    Card,
    Overview,
    arrange_cards,
    describe_objects,
    draw_cards,
    members,
    overview,
)
from topology.graph.vhost_survey import Group, Survey, name_of, part, survey
from topology.models import Broker, Role, State, Topology
from topology.operations.finding_rows import with_reports
from topology.patterns.table import KINDS
from topology.provisioning.recognition import Found, departures, recognize
from topology.snapshot import Snapshot
from topology.views.background import SnapshotCache
from topology.views.diagram import Diagram, draw, draw_graph

MOST = 500
# Most topologies, and most boxes, in one diagram with all arrows between them.
MOST_IN_A_GRAPH = 60


@dataclass(frozen=True)
class Row:
    """A card as a row of the table under the diagram."""

    card: Card
    objects: str
    leads_to: Sequence[str]


@dataclass(frozen=True)
class LinkTarget:
    """What a link on the diagram leads into; `found` is None for what belongs to none."""

    title: str
    kind: str
    ids: frozenset[str]
    found: Found | None = None
    managed: Topology | None = None


# A survey, and by the keys of its groups what was recognized.
Surveyed: TypeAlias = tuple[Survey, Mapping[str, Found]]
_kept: SnapshotCache[Surveyed] = SnapshotCache()


@require_safe
@access.with_broker(Role.VIEWER)
def vhost(request: HttpRequest, broker: Broker) -> HttpResponse:
    known = snapshots.fresh(broker)
    search = request.GET.get("q", "").strip()
    wanted = request.GET.get("open", "")
    context: dict[str, Any] = {
        "broker": broker,
        "latest": known,
        "search": search,
        "wanted": wanted,
    }
    if known.snapshot is not None:
        context |= _make_context(broker, known.snapshot, wanted, search)
    return render(request, "topology/vhost.html", context)


def _make_context(broker: Broker, snapshot: Snapshot, wanted: str, search: str) -> dict[str, Any]:
    seen, uses = _survey(broker, snapshot)
    if not wanted:
        return _draw(broker, overview(seen, search=search, most=MOST))
    opened = _find_target(broker, seen, uses, wanted)
    if opened is None:
        return {"is_missing": True}
    diagram = None if search else _draw_whole(broker, seen, opened)
    inside = members(seen, opened.ids, search=search, most=MOST)
    if diagram is None:
        return {"opened": opened, **_draw(broker, inside)}
    return {"opened": opened, "is_live": True, **_list_cards(broker, inside, diagram)}


def _survey(broker: Broker, snapshot: Snapshot) -> Surveyed:
    def survey_vhost() -> Surveyed:
        uses = {_key(found): found for found in recognize(snapshot).found}
        groups = [_group(key, found, snapshot) for key, found in uses.items()]
        return survey(with_reports(broker, snapshot), groups), uses

    return _kept.get(broker.pk, snapshot, survey_vhost)


def _draw(broker: Broker, seen: Overview) -> dict[str, Any]:
    linked = replace(seen, cards=tuple(_with_link(broker, card) for card in seen.cards))
    layout = arrange_cards(linked)
    svg = draw_cards(linked, layout, title=f"All of {broker.name}", id=f"vhost-{broker.pk}")
    # topology.graph.vhost_cards escapes every text that it writes.
    return _list_cards(broker, linked, Diagram(SafeString(svg), note=layout.note))


def _list_cards(broker: Broker, seen: Overview, diagram: Diagram) -> dict[str, Any]:
    leading = seen.list_targets()
    rows = [
        Row(_with_link(broker, card), describe_objects(card), leading.get(card.key, ()))
        for card in seen.cards
    ]
    return {"diagram": diagram, "rows": rows, "shown": len(rows), "total": seen.total}


def _draw_whole(broker: Broker, seen: Survey, opened: LinkTarget) -> Diagram | None:
    """Everything of it with all arrows, and what stands next to it; None where that is much."""
    found, snapshot = opened.found, seen.snapshot
    if len(opened.ids) > MOST_IN_A_GRAPH:
        return None
    if found is not None and found.use.params is not None:
        texts = KINDS[found.use.kind].store(found.use.params)
        use = Topology(broker=broker, kind=found.use.kind, name=found.use.name, params=texts)
        return draw(use, snapshot)
    inside = replace(snapshot, definitions=part(seen.definitions, opened.ids))
    graph = build(inside, beside=seen.definitions, extra_edges=seen.extra_edges(opened.ids))
    return (
        draw_graph(graph, opened.title, "opened") if len(graph.nodes) <= MOST_IN_A_GRAPH else None
    )


def _key(found: Found) -> str:
    return f"{found.use.kind}/{found.use.name}"


def _group(key: str, found: Found, snapshot: Snapshot) -> Group:
    """With the queues that come and go."""
    claimed = {f"{kind}/{name}" for kind, name, *_ in found.use.claims if kind != "binding"}
    return Group(
        key,
        found.use.name,
        KINDS[found.use.kind].EXPLANATION.title,
        frozenset(claimed | {f"queue/{name}" for name in found.queues}),
        found.waiting,
        tuple(_trouble(found, snapshot)),
        forwarder_edges(KINDS[found.use.kind].forwarders(found.use.params))
        if found.use.params is not None
        else (),
    )


def _trouble(found: Found, snapshot: Snapshot) -> Iterator[str]:
    """A sentence on each thing that it lacks or has otherwise."""
    if found.plan is None or not found.plan.changes:
        yield from found.use.missing
        return
    for change in found.plan.select("create"):
        yield f"Missing: {change.title}."
    for departure in departures(found, snapshot):
        if not departure.is_made_up_for:
            yield f"Different: {departure.title}, argument {departure.name}."


def _find_target(
    broker: Broker, seen: Survey, uses: Mapping[str, Found], wanted: str
) -> LinkTarget | None:
    if wanted in REST:
        return LinkTarget(REST[wanted][0], "", seen.rest[wanted])
    group = next((group for group in seen.groups if group.key == wanted), None)
    if group is None:
        return None
    found = uses[wanted]
    ours = Topology.objects.filter(broker=broker, kind=found.use.kind, name=found.use.name)
    managed = ours.exclude(state=State.DELETED).first()
    return LinkTarget(group.title, group.kind, group.members, found, managed)


def _with_link(broker: Broker, card: Card) -> Card:
    return replace(card, href=_href(broker, card))


def _href(broker: Broker, card: Card) -> str:
    if card.is_many:
        return f"?{urlencode({'open': card.key})}"
    name = name_of(card.key)
    if card.shape == "queue":
        return f"{reverse('dead_letter_queue', args=[broker.slug])}?{urlencode({'name': name})}"
    if card.shape == "exchange":
        where = reverse("topology:trace_route", args=[broker.slug])
        return f"{where}?{urlencode({'exchange': name})}"
    return ""
