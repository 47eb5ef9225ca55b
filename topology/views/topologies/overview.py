"""The list of topologies, the patterns to create one, and the explanation of each pattern."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import urlencode

from django.db.models import F
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from topology import access, snapshots
from topology.delays import format_delay
from topology.models import Broker, Role, State, Topology
from topology.patterns.comparison import DELAYS, list_costs
from topology.patterns.pattern import Pattern
from topology.patterns.recommend import CLIENTS, PURPOSES, describe_recording, recommend
from topology.patterns.recommend import DELAYS as SPANS
from topology.patterns.table import KINDS, PATTERNS, list_created
from topology.views.diagram import draw_example
from topology.views.findings import count_by_topology
from topology.views.sorting import read_sort

# Value in the address -> column by which the list is sorted.
SORTS = {"name": "name", "pattern": "kind", "broker": "broker__name", "applied": "applied_at"}


@require_safe
def topologies(request: HttpRequest) -> HttpResponse:
    choice = access.choose_brokers(request)
    rows = Topology.objects.filter(broker__in=choice.shown).select_related("broker", "drift")
    rows = rows.prefetch_related("missing_bindings")
    if request.GET.get("deleted") != "yes":
        rows = rows.exclude(state=State.DELETED)
    sort = read_sort(request, SORTS, "name")
    first = SORTS[sort.removeprefix("-")]
    ordered = F(first).desc(nulls_last=True) if sort.startswith("-") else F(first).asc()
    rows = rows.order_by(ordered, "name", "pk")
    counts = count_by_topology(rows)
    return render(
        request,
        "topology/topologies.html",
        {
            "rows": [(one, counts.get(one.pk)) for one in rows],
            "brokers": choice.visible,
            "broker": choice.chosen,
            "sort": sort,
            "with_deleted": request.GET.get("deleted") == "yes",
            "may_add": access.visible_brokers(request.user, Role.OPERATOR).exists(),
        },
    )


@require_safe
def patterns(request: HttpRequest) -> HttpResponse:
    """Two questions and one recommendation, and all patterns side by side."""
    choice = access.choose_brokers(request)
    answers = [
        _read_choice(request, name, known)
        for name, known in (("purpose", PURPOSES), ("delays", SPANS), ("client", CLIENTS))
    ]
    advice = recommend(*answers)
    pattern = KINDS[advice.kind]
    listed = _list_patterns(choice.shown)
    context = {
        "questions": [
            ("purpose", "What is it for?", PURPOSES, answers[0]),
            ("delays", "Which delays?", SPANS, answers[1]),
        ],
        "clients": CLIENTS,
        "client": answers[2],
        "advice": advice,
        "advised": pattern.EXPLANATION,
        "obstacle": next(why for kind, _, why in listed if kind == advice.kind),
        "recording": describe_recording(pattern, pattern.EXAMPLE),
        "query": urlencode(
            {"kind": advice.kind, **advice.values}
            | ({"broker": choice.chosen.slug} if choice.chosen else {})
        ),
        "diagram": draw_example(advice.kind),
        "patterns": listed,
        "broker": choice.chosen,
        "others": [one for one in PATTERNS.values() if not one.IS_CREATED],
        "costs": list_costs(DELAYS),
        "compared_delays": ", ".join(map(format_delay, DELAYS)),
        "compared_delay": format_delay(max(DELAYS)),
        "may_add": access.visible_brokers(request.user, Role.OPERATOR).exists(),
    }
    return render(request, "topology/patterns.html", context)


def _read_choice(request: HttpRequest, name: str, known: Mapping[str, str]) -> str:
    """What the address chooses, else the first."""
    given = request.GET.get(name, "")
    return given if given in known else next(iter(known))


def _list_patterns(brokers: Iterable[Broker]) -> list[tuple[str, Pattern, str]]:
    """Each pattern by its kind, and why none of the brokers can have it; "" if one can."""
    known = [one.snapshot for broker in brokers if (one := snapshots.latest(broker.pk))]
    seen = [snapshot for snapshot in known if snapshot is not None]
    listed = []
    for kind, pattern in list_created().items():
        reasons = [pattern.obstacle(one.version_tuple) for one in seen]
        listed.append((kind, pattern, reasons[0] if reasons and all(reasons) else ""))
    return listed


@require_safe
def explain(request: HttpRequest, kind: str) -> HttpResponse:
    if kind not in KINDS:
        raise Http404
    pattern = KINDS[kind]
    context = {
        "kind": kind,
        "explanation": pattern.EXPLANATION,
        "example": pattern.consumer_example(pattern.EXAMPLE),
        "diagram": draw_example(kind),
        "patterns": PATTERNS,
        "is_provisioned": kind in list_created(),
    }
    return render(request, "topology/explain.html", context)
