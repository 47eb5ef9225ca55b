"""The last two steps of a new broker: what was found on it, and what to watch."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from delayboard import broker_start as choices
from topology import access, snapshots
from topology.models import Broker, Role
from topology.views.brokers.broker_overview import make_overview


@require_http_methods(["GET", "HEAD", "POST"])
@access.with_broker(Role.OPERATOR)
def broker_start(request: HttpRequest, broker: Broker) -> HttpResponse:
    known = snapshots.fresh(broker)
    if request.method == "POST":
        if known.snapshot is None:
            messages.error(request, f"Nothing was changed. {broker.name} has not answered yet.")
            return redirect("broker_start", broker_slug=broker.slug)
        marked, parked = request.POST.getlist("mark"), request.POST.getlist("park")
        problems = choices.watch_queues(request.user, broker, known.snapshot, marked, parked)
        for problem in problems:
            messages.error(request, problem)
        if not problems or len(problems) < len({*marked, *parked}):
            messages.success(request, f"{broker.name} is set up.")
        return redirect("topology:broker", broker_slug=broker.slug)
    context = {
        "broker": broker,
        "latest": known,
        "overview": make_overview(broker, known.snapshot) if known.snapshot else None,
        "proposed": choices.propose_queues(broker, known.snapshot) if known.snapshot else [],
    }
    return render(request, "delayboard/broker_start.html", context)
