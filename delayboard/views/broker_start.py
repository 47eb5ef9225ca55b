"""The last two steps of a new broker: what was found on it, and what to watch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from delayboard.dead_letters.parked.park_request import ParkError, set_automatic_parking
from delayboard.dead_letters.queues.candidates import Candidate, candidates
from delayboard.dead_letters.queues.confirmed import Undecided, decide, destinations
from delayboard.models import DeadLetterQueue
from topology import access, snapshots
from topology.models import Broker, Role
from topology.snapshot import Snapshot
from topology.views.brokers.broker_overview import make_overview

# Most queues on the page; more are decided on the page Dead letters, one by one.
MOST = 50


@require_http_methods(["GET", "HEAD", "POST"])
@access.with_broker(Role.OPERATOR)
def broker_start(request: HttpRequest, broker: Broker) -> HttpResponse:
    known = snapshots.fresh(broker)
    if request.method == "POST":
        if known.snapshot is None:
            messages.error(request, f"Nothing was changed. {broker.name} has not answered yet.")
            return redirect("broker_start", broker_slug=broker.slug)
        marked, parked = request.POST.getlist("mark"), request.POST.getlist("park")
        problems = watch_queues(request.user, broker, known.snapshot, marked, parked)
        for problem in problems:
            messages.error(request, problem)
        if not problems or len(problems) < len({*marked, *parked}):
            messages.success(request, f"{broker.name} is set up.")
        return redirect("topology:broker", broker_slug=broker.slug)
    context = {
        "broker": broker,
        "latest": known,
        "overview": make_overview(broker, known.snapshot) if known.snapshot else None,
        "proposed": propose_queues(broker, known.snapshot) if known.snapshot else [],
    }
    return render(request, "delayboard/broker_start.html", context)


def propose_queues(broker: Broker, snapshot: Snapshot) -> Sequence[Candidate]:
    """Probable dead-letter queues without a decision, by name or structure; MOST at most."""
    decided = set(DeadLetterQueue.objects.filter(broker=broker).values_list("queue", flat=True))
    found = candidates(snapshot, destinations(broker, snapshot))
    probable = (one for one in found if one.is_likely or one.is_possible)
    return [one for one in probable if one.queue not in decided][:MOST]


def watch_queues(
    user: Any, broker: Broker, snapshot: Snapshot, marked: Collection[str], parked: Collection[str]
) -> Sequence[str]:
    """Mark the queues as dead-letter queues, and park those of `parked` automatically.

    Returns a sentence for each queue for which that is not possible, or needs attention.
    """
    problems = []
    for name in sorted({*marked, *parked})[:MOST]:
        try:
            decide(user, broker, name, snapshot, is_confirmed=True)
            if name in parked:
                warning = set_automatic_parking(user, broker, name, snapshot, on=True)
                problems += [f"{name[:100]}: {warning}"] if warning else []
        except (Undecided, ParkError) as problem:
            problems.append(f"{name[:100]}: {problem}")
    return problems
