"""The search of live dead-letter queues."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from analytics.events import clean
from analytics.search.query import LONGEST, QueryError, parse
from delayboard.dead_letters.presentation import show_whole
from delayboard.dead_letters.search.live_queues import (
    SearchedQueue,
    search_queues,
    select_queues,
)
from delayboard.views.dead_letters.overview import find_candidates
from topology import access, audit, redaction, snapshots
from topology.models import Broker, Role
from topology.redaction import Redaction


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@access.with_broker(Role.VIEWER)
def live_search(request: HttpRequest, broker: Broker) -> HttpResponse:
    """The queues that a search covers. A POST peeks at them, which marks messages, so no GET."""
    known, template = snapshots.fresh(broker), "delayboard/live_search.html"
    values = request.POST if request.method == "POST" else request.GET
    text, name = (clean(values.get(one, "")).strip()[:LONGEST] for one in ("q", "queue"))
    context: dict[str, Any] = {
        "broker": broker,
        "latest": known,
        "text": text,
        "name": name,
        "may_operate": access.may(request.user, broker, Role.OPERATOR),
    }
    found = find_candidates(broker, known)
    if known.snapshot is not None and found is not None:
        free, costly = select_queues(broker, found, known.snapshot, name)
        context |= {"free": free, "costly": costly}
        if request.method == "POST":
            if not context["may_operate"]:
                raise PermissionDenied("Reading messages needs the role operator.")
            try:
                query = parse(text, datetime.now(UTC), {})
            except QueryError as error:
                return render(request, template, context | {"problem": str(error)})
            rules = redaction.rules_for(request.user, broker)
            with audit.recorded(
                request.user, "queues searched", broker=broker, details={"text": text}
            ):
                searched = search_queues(broker, known.snapshot, free, query, rules)
            context |= _shown(searched, rules)
    return render(request, template, context)


def _shown(searched: list[SearchedQueue], rules: Redaction) -> dict[str, Any]:
    return {
        "searched": [one for one in searched if not one.problem],
        "failed": [one for one in searched if one.problem],
        "read_count": sum(one.read_count for one in searched),
        "matches": [
            (one.name, match.position, show_whole(match.message, redaction=rules))
            for one in searched
            for match in one.matches
        ],
    }
