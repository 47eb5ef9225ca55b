"""What the views of one topology share: who may open it, an action and its message."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST

from topology import access, snapshots
from topology.broker.errors import BrokerError
from topology.definitions import Definitions
from topology.models import Role, Topology
from topology.operations.ownership import Refusal
from topology.patterns.pattern import MADE_UP
from topology.views.redirect_back import next_of


def with_topology(role: Role, *, changes: bool = True) -> Callable[[access.View], access.View]:
    """A view of `/topologies/<slug>/`: hands it the Topology, if the user holds the role.

    `changes` as of `access.with_broker`.
    """

    def decorate(view: access.View) -> access.View:
        @wraps(view)
        def guarded(request: HttpRequest, slug: str) -> HttpResponse:
            topology = get_object_or_404(Topology.objects.select_related("broker"), slug=slug)
            access.require(
                request.user, topology.broker, role, request=request if changes else None
            )
            return view(request, topology)

        return guarded

    return decorate


def head_context(request: HttpRequest, topology: Topology) -> dict[str, Any]:
    """What the head of the topology's page shows on every tab."""
    return {
        "topology": topology,
        "broker": topology.broker,
        "may_operate": access.may(request.user, topology.broker, Role.OPERATOR),
        "trace_query": _make_trace_query(topology),
        "first_delay": next(iter(topology.pattern.delays(topology.parsed)), None),
    }


def _make_trace_query(topology: Topology) -> str:
    """The first of its possible publishes, for the form that traces a route; "" where it has none
    that its broker can take as it is.
    """
    known = snapshots.latest(topology.broker_id)
    found = known.snapshot.definitions if known and known.snapshot else Definitions()
    for delay, target, _ in topology.pattern.trials(topology.parsed, found):
        route = topology.pattern.route(topology.parsed, delay, target)
        if target != MADE_UP and all(found.get(one.identity) for one in route.declares):
            query = {"exchange": route.exchange, "routing_key": route.routing_key}
            # The header that others read is only a guess of ours.
            is_guessed = topology.is_read_by_others
            now_ms = time.time_ns() // 1_000_000
            headers = route.headers if is_guessed else route.make_headers(now_ms)
            return f"?{urlencode({**query, 'headers': json.dumps(headers)} if headers else query)}"
    return ""


def topology_action(failure: str) -> Callable[[Callable[..., str]], access.View]:
    """A POST by an operator that shows the message it returns, or the failure with its reason."""

    def decorate(act: Callable[..., str]) -> access.View:
        @require_POST
        @with_topology(Role.OPERATOR)
        @wraps(act)
        def view(request: HttpRequest, topology: Topology) -> HttpResponse:
            try:
                messages.success(request, act(request, topology))
            except Refusal as refusal:
                messages.error(request, f"{failure} {refusal}")
            except BrokerError as error:
                return show_failure(request, topology, f"{failure} {error}")
            return return_to_page(request, topology)

        return view

    return decorate


def show_failure(request: HttpRequest, topology: Topology, sentence: str) -> HttpResponse:
    """Without another look at a broker that just did not answer."""
    messages.error(request, sentence)
    return redirect("topology:topology", slug=topology.slug)


def return_to_page(request: HttpRequest, topology: Topology) -> HttpResponse:
    snapshots.poll(topology.broker)
    page = reverse("topology:topology", args=[topology.slug])
    return redirect(next_of(request, page))
