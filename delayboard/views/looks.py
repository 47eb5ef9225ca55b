"""Looking into a live queue, and preparing a replay of what was chosen there."""

from __future__ import annotations

import time
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_POST, require_safe

from analytics.events import clean
from delayboard.dead_letters import browse, look_budget
from delayboard.dead_letters.replay import batch as batches
from delayboard.dead_letters.replay.verdict import Target
from delayboard.dead_letters.show import Shown, show
from delayboard.models import DeadLetterQueue
from topology import access, audit, latest, masks
from topology.broker.errors import BrokerError
from topology.definitions import Queue
from topology.latest import Latest
from topology.models import Broker, Role
from topology.routing.index import Index
from topology.rows import waiters_at

REPLAYS_COST = (
    "On a quorum queue of this version a replay out of the queue costs what stays in it "
    "deliveries, until it is destroyed: park the messages first."
)

NO_NAME = "The exchange or key is none: it has at most 255 bytes, all of signs that can be written."


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
        "permission": _permission(broker, queue, known),
        "row": DeadLetterQueue.objects.filter(broker=broker, queue=clean(queue.name)).first(),
        "may_operate": access.may(request.user, broker, Role.OPERATOR),
    }
    if request.GET.get("look") == "1":
        if not access.may(request.user, broker, Role.OPERATOR):
            raise PermissionDenied("Reading messages needs the role operator.")
        context |= _looked(request, broker, queue, known)
        context["permission"] = _permission(broker, queue, known)
    return render(request, "delayboard/dead_letter_queue.html", context)


@require_POST
@access.with_broker(Role.OPERATOR)
def replay_prepare(request: HttpRequest, broker: Broker) -> HttpResponse:
    """Freeze the chosen messages into a draft, which is the dry run's page."""
    known, queue = _queue(broker, request.POST.get("name", ""))
    handles = request.POST.getlist("message")
    page = reverse("dead_letter_queue", args=[broker.slug])
    back = f"{page}?{urlencode({'name': queue.name, 'look': '1'})}"
    typed = _typed_target(request)
    if known.snapshot is None:
        messages.error(request, f"Nothing was prepared. {known.error}")
        return redirect(back)
    if typed is not None and not _can_be_kept(typed):
        messages.error(request, f"Nothing was prepared. {NO_NAME}")
        return redirect(back)
    found = browse.permission(queue, known.snapshot)
    if found.budget is not None:
        # Each pass of a replay through the queue would cost what stays in it a delivery.
        messages.error(request, f"Nothing was prepared. {REPLAYS_COST}")
        return redirect(f"{page}?{urlencode({'name': queue.name})}")
    try:
        seen = browse.look(broker, queue, known.snapshot)
        made = batches.freeze(
            request.user,
            broker,
            queue.name,
            batches.chosen(seen.letters, handles),
            known.snapshot,
            typed=typed,
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


def _can_be_kept(target: Target) -> bool:
    names = (target.exchange, target.routing_key)
    return all(len(name.encode()) <= 255 and clean(name) == name for name in names)


def _queue(broker: Broker, name: str) -> tuple[Latest, Queue]:
    """The queue as it is in force. Raises Http404 when the broker has none of this name."""
    known = latest.fresh(broker)
    if known.snapshot is None:
        return known, Queue(name)
    queue = known.snapshot.definitions.queue(name)
    if queue is None:
        raise Http404(f"{broker.name} has no queue of this name.")
    return known, queue


def _permission(broker: Broker, queue: Queue, known: Latest) -> browse.Permission | None:
    """None while nothing is known of the broker."""
    if known.snapshot is None:
        return None
    budget = look_budget.budget(broker, queue, known.snapshot)
    return browse.permission(queue, known.snapshot, budget)


def _looked(request: HttpRequest, broker: Broker, queue: Queue, known: Latest) -> dict[str, Any]:
    if known.snapshot is None:
        return {"look_error": known.error}
    try:
        with audit.recorded(request.user, "queue looked into", broker=broker, what=queue.name):
            seen = browse.look(broker, queue, known.snapshot)
    except BrokerError as error:
        return {"look_error": str(error)}
    costs = seen.permission.budget is not None
    waits = batches.delay_queues(broker)
    index = Index(known.snapshot.definitions.without_taps())
    version = known.snapshot.version_tuple
    rules = masks.rules_for(request.user, broker)
    waiters, now_ms = waiters_at(broker), time.time_ns() // 1_000_000
    shown: list[Shown] = [
        show(
            letter,
            index,
            waits,
            queue=queue.name,
            version=version,
            masks=rules,
            waiters=waiters,
            now_ms=now_ms,
        )
        for letter in seen.letters
    ]
    return {"look": seen, "letters": shown, "replays_cost": REPLAYS_COST if costs else ""}
