"""Looking into a live queue."""

from __future__ import annotations

import time
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.safestring import SafeString
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from analytics.charts import svg
from analytics.charts.figures import queue_depth, queue_rates
from analytics.events import clean
from delayboard.dead_letters.parked import groups
from delayboard.dead_letters.parked.consume import make_store
from delayboard.dead_letters.parked.store_batch import StoreFailed
from delayboard.dead_letters.presentation import Shown, show
from delayboard.dead_letters.queues import peek
from delayboard.dead_letters.queues.mixed_ttls import find_blocked
from delayboard.dead_letters.replay.options import DEFAULTS
from delayboard.dead_letters.replay.targets import find_targets
from delayboard.models import DeadLetterQueue
from delayboard.queue_history import RANGES, RATES, read_history
from topology import access, audit, redaction, snapshots
from topology.broker.errors import BrokerError
from topology.definitions import Queue
from topology.graph.live_values import rate_text
from topology.models import Broker, Role
from topology.models.client_convention import read_conventions
from topology.operations.finding_rows import replace_peeked
from topology.operations.topology_rows import forwarders_at
from topology.routing.matching.index import Index
from topology.snapshots import Latest

REPLAYS_COST = (
    "On this RabbitMQ version, a replay from a quorum queue uses deliveries of the remaining "
    "messages and can destroy them. Park the messages first."
)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@access.with_broker(Role.VIEWER)
def dead_letter_queue(request: HttpRequest, broker: Broker) -> HttpResponse:
    """The queue's page: what a peek would do. A POST makes one and answers with the messages.

    A peek needs a POST: it marks messages, and it may use up their deliveries.
    """
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
    if request.method != "POST":
        context |= _history(request, broker, queue)
    else:
        if not access.may(request.user, broker, Role.OPERATOR):
            raise PermissionDenied("Reading messages needs the role operator.")
        context |= _peek(request, broker, queue, known)
    return render(request, "delayboard/dead_letter_queue.html", context)


def _history(request: HttpRequest, broker: Broker, queue: Queue) -> dict[str, Any]:
    """Depth and rates over the range in the address, else of the last day."""
    chosen = request.GET.get("range", "")
    chosen = chosen if chosen in RANGES else next(iter(RANGES))
    found = read_history(broker, queue.name, chosen, timezone.now())
    context = {
        "history": found,
        "range": chosen,
        "ranges": [(key, label) for key, (label, *_) in RANGES.items()],
        "means": [(label, rate_text(found.mean(rate))) for rate, label in RATES.items()],
    }
    if found.is_known:
        labels = [point.label for point in found.points]
        depths = [point.messages for point in found.points]
        rates = {name: [getattr(one, rate) for one in found.points] for rate, name in RATES.items()}
        figures = [
            ("depth", "Depth", queue_depth(labels, depths)),
            ("rates", "Rates", queue_rates(labels, rates)),
        ]
        context["figures"] = [
            # analytics.charts.svg escapes every text that it writes.
            (key, title, figure, SafeString(svg.draw(figure, title)))
            for key, title, figure in figures
        ]
    return context


def _queue(broker: Broker, name: str) -> tuple[Latest, Queue]:
    """The queue as it is in force. Raises Http404 when the broker has none with this name."""
    known = snapshots.fresh(broker)
    if known.snapshot is None:
        return known, Queue(name)
    queue = known.snapshot.definitions.queue(name)
    if queue is None:
        raise Http404(f"{broker.name} has no queue with this name.")
    return known, queue


def _permission(broker: Broker, queue: Queue, known: Latest) -> peek.Permission | None:
    """None while nothing is known of the broker."""
    if known.snapshot is None:
        return None
    budget = peek.read_budget(broker, queue, known.snapshot)
    return peek.permission(queue, known.snapshot, budget)


def _peek(request: HttpRequest, broker: Broker, queue: Queue, known: Latest) -> dict[str, Any]:
    if known.snapshot is None:
        return {"peek_error": known.error}
    try:
        with audit.recorded(request.user, "queue peeked", broker=broker, what=queue.name):
            store = make_store(broker, queue.name, request.user)
            seen = peek.peek_queue(broker, queue, known.snapshot, store=store)
    except peek.PeekRefused as error:
        return {"peek_error": str(error), "permission": error.permission}
    except (BrokerError, StoreFailed) as error:
        return {"peek_error": str(error)}
    peeked = [one.message for one in seen.peeked_messages]
    blocked, lasts = find_blocked(queue, peeked, seen.removed)
    replace_peeked(broker, queue.name, blocked, timezone.now() + lasts)
    costs = seen.permission.budget is not None
    index = Index(known.snapshot.definitions.without_taps())
    targets = find_targets(broker, DEFAULTS, index, read_conventions(broker))
    version = known.snapshot.version_tuple
    rules = redaction.rules_for(request.user, broker)
    forwarders, now_ms = forwarders_at(broker), time.time_ns() // 1_000_000
    shown: list[Shown] = [
        show(
            peeked_message,
            targets,
            queue=queue.name,
            version=version,
            redaction=rules,
            forwarders=forwarders,
            now_ms=now_ms,
        )
        for peeked_message in seen.peeked_messages
    ]
    return {
        "peek": seen,
        "blocked": blocked,
        "permission": seen.permission,
        "peeked_messages": shown,
        "groups": groups.seen_in(broker, queue.name, seen.peeked_messages, rules),
        "replays_cost": REPLAYS_COST if costs else "",
    }
