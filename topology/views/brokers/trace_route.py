"""Where would this go? A publish that nobody makes, followed through a broker to every end."""

from __future__ import annotations

import time
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from topology import access, snapshots
from topology.forms.question import QuestionForm
from topology.models import Broker, Role
from topology.operations.topology_rows import forwarders_at
from topology.routing.matching.index import Index
from topology.routing.trace_route import Answer, Question, ask
from topology.snapshot import Snapshot
from topology.views.background import SnapshotCache
from topology.views.diagram import draw_path

_kept: SnapshotCache[Index] = SnapshotCache()


@require_safe
@access.with_broker(Role.VIEWER)
def trace_route(request: HttpRequest, broker: Broker) -> HttpResponse:
    form = QuestionForm(request.GET if request.GET else None)
    known = snapshots.fresh(broker)
    context: dict[str, Any] = {"broker": broker, "form": form, "latest": known}
    if form.is_valid() and known.snapshot is not None:
        answer = trace(form.question(), broker, known.snapshot)
        context |= {
            "answer": answer,
            "diagram": draw_path(answer, known.snapshot, broker) if len(answer.path) else None,
        }
    return render(request, "topology/trace_route.html", context)


def trace(question: Question, broker: Broker, snapshot: Snapshot) -> Answer:
    """The route now, with the consumers that forward messages in this broker."""
    return ask(
        question,
        snapshot,
        # Of ten thousand queues it takes half a second to make.
        _kept.get(broker.pk, snapshot, lambda: Index(snapshot.definitions.without_taps())),
        forwarders=forwarders_at(broker),
        now_ms=time.time_ns() // 1_000_000,
    )
