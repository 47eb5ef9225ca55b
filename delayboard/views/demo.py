"""The page of the demo: the tour, and the removal of everything that the demo made."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from delayboard.demo import removal
from delayboard.demo.script import TOUR
from topology import access
from topology.broker.errors import BrokerError
from topology.models import Broker, Role, State
from topology.operations.ownership import Refusal
from topology.views.redirect_back import next_of


@require_safe
def demo(request: HttpRequest) -> HttpResponse:
    broker = _visible_demo(request)
    topologies = removal.demo_topologies(broker).exclude(state=State.DELETED) if broker else []
    context = {
        "demo": broker,
        "topologies": topologies,
        "queues": removal.QUEUES,
        "steps": TOUR,
        "may_remove": broker is not None and access.may(request.user, broker, Role.ADMIN),
    }
    return render(request, "delayboard/demo.html", context)


@require_POST
def demo_remove(request: HttpRequest) -> HttpResponse:
    broker = _visible_demo(request)
    if broker is None:
        raise Http404
    access.require(request.user, broker, Role.ADMIN)
    if request.POST.get("name", "").strip() != broker.name:
        messages.error(request, f"Nothing was removed. Type “{broker.name}” to remove the demo.")
        return redirect("demo")
    try:
        removal.remove_demo(request.user, broker)
    except (BrokerError, Refusal) as error:
        messages.error(
            request, f"The demo is only partly removed. {error} Repeat “Remove demo” afterwards."
        )
    else:
        request.session.pop("tour", None)
        messages.success(request, "The demo is removed. Your own topologies on its broker remain.")
    return redirect("demo")


@require_POST
def tour(request: HttpRequest) -> HttpResponse:
    """Go to a step, which the session remembers; anything else ends the tour."""
    text = request.POST.get("step", "")
    if text not in map(str, range(1, len(TOUR) + 1)):
        request.session.pop("tour", None)
        return redirect(next_of(request, "/"))
    request.session["tour"] = int(text)
    return redirect(TOUR[int(text) - 1].view)


def _visible_demo(request: HttpRequest) -> Broker | None:
    broker = removal.demo_broker()
    return broker if broker and access.may(request.user, broker, Role.VIEWER) else None
