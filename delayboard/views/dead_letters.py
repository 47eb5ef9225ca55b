"""Dead letters: which queues, what is in one, and preparing a replay of chosen messages."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST, require_safe

from delayboard.dead_letters import browse
from delayboard.dead_letters.candidates import candidates
from delayboard.dead_letters.replay import batch as batches
from delayboard.dead_letters.replay.verdict import Target
from delayboard.dead_letters.show import Shown, show
from topology import access, audit, latest
from topology.broker.errors import BrokerError
from topology.definitions import Queue
from topology.latest import Latest
from topology.models import Broker, Role, State, Topology
from topology.routing.index import Index

# A page of ten thousand queues takes a second and three megabytes.
MOST_CANDIDATES = 300


@require_safe
def dead_letters(request: HttpRequest) -> HttpResponse:
    """Every queue of the chosen broker, the likely dead-letter queues first."""
    visible = list(access.visible_brokers(request.user))
    chosen = request.GET.get("broker", "")
    search = request.GET.get("q", "").strip()
    broker = next((b for b in visible if b.slug == chosen or not chosen), None)
    if chosen and broker is None:
        raise Http404
    context: dict[str, Any] = {"brokers": visible, "broker": broker, "search": search}
    if broker is not None:
        known = latest.fresh(broker)
        found = candidates(known.snapshot, _claimed(broker)) if known.snapshot else []
        fitting = [one for one in found if search.casefold() in one.queue.casefold()]
        shown = fitting[:MOST_CANDIDATES]
        context |= {"latest": known, "candidates": shown, "total": len(fitting)}
    return render(request, "delayboard/dead_letters.html", context)


@require_safe
@access.with_broker(Role.VIEWER)
def dead_letter_queue(request: HttpRequest, broker: Broker) -> HttpResponse:
    """The queue's page: what a look would do; with `look=1` the messages."""
    known, queue = _queue(broker, request.GET.get("name", ""))
    context: dict[str, Any] = {
        "broker": broker,
        "latest": known,
        "queue": queue,
        "numbers": known.snapshot.numbers.get(queue.name) if known.snapshot else None,
        "permission": browse.permission(queue, known.snapshot) if known.snapshot else None,
        "may_operate": access.may(request.user, broker, Role.OPERATOR),
    }
    if request.GET.get("look") == "1":
        if not access.may(request.user, broker, Role.OPERATOR):
            raise PermissionDenied("Reading messages needs the role operator.")
        context |= _looked(request, broker, queue, known)
    return render(request, "delayboard/dead_letter_queue.html", context)


@require_POST
@access.with_broker(Role.OPERATOR)
def replay_prepare(request: HttpRequest, broker: Broker) -> HttpResponse:
    """Freeze the chosen messages into a draft, which is the dry run's page."""
    known, queue = _queue(broker, request.POST.get("name", ""))
    handles = request.POST.getlist("message")
    back = f"{reverse('dead_letter_queue', args=[broker.slug])}?" + urlencode(
        {"name": queue.name, "look": "1"}
    )
    if known.snapshot is None:
        messages.error(request, f"Nothing was prepared. {known.error}")
        return redirect(back)
    try:
        seen = browse.look(broker, queue, known.snapshot)
        made = batches.freeze(
            request.user,
            broker,
            queue.name,
            batches.chosen(seen.letters, handles),
            known.snapshot,
            typed=_typed_target(request),
        )
    except (BrokerError, batches.BatchError) as error:
        messages.error(request, f"Nothing was prepared. {error}")
        return redirect(back)
    missing = len(handles) - made.items.count()
    if missing:
        messages.warning(request, f"{missing} of the chosen messages are no longer at its head.")
    return redirect("replay_batch", pk=made.pk)


def _typed_target(request: HttpRequest) -> Target | None:
    if request.POST.get("target") != "typed":
        return None
    exchange = request.POST.get("exchange", "").strip()
    return Target(exchange, request.POST.get("routing_key", "").strip(), "typed in")


def _queue(broker: Broker, name: str) -> tuple[Latest, Queue]:
    """The queue as it is in force. Raises Http404 when the broker has none of this name."""
    known = latest.fresh(broker)
    if known.snapshot is None:
        return known, Queue(name)
    queue = known.snapshot.definitions.queue(name)
    if queue is None:
        raise Http404(f"{broker.name} has no queue of this name.")
    return known, queue


def _looked(request: HttpRequest, broker: Broker, queue: Queue, known: Latest) -> dict[str, Any]:
    if known.snapshot is None:
        return {"look_error": known.error}
    try:
        with audit.recorded(request.user, "queue looked into", broker=broker, what=queue.name):
            seen = browse.look(broker, queue, known.snapshot)
    except BrokerError as error:
        return {"look_error": str(error)}
    waits = batches.delay_queues(broker)
    index = Index(known.snapshot.definitions.without_taps())
    version = known.snapshot.version_tuple
    shown: list[Shown] = [
        show(letter, index, waits, queue=queue.name, version=version) for letter in seen.letters
    ]
    return {"look": seen, "letters": shown}


def _claimed(broker: Broker) -> set[str]:
    applied = Topology.objects.filter(broker=broker).exclude(state=State.TORN_DOWN)
    return {queue.name for topology in applied for queue in topology.definitions.queues}
