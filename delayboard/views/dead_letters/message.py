"""One parked dead letter: history, path, content and predicted replay."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from delayboard.dead_letters.message_history import (
    MOST_DEATHS,
    build_history,
    build_later_steps,
    path_diagram,
)
from delayboard.dead_letters.parked.redact_cause import seen_parked_message
from delayboard.dead_letters.presentation import show_whole
from delayboard.dead_letters.queues import peek
from delayboard.dead_letters.replay.verdicts import check_default
from delayboard.models import ParkedMessage
from topology import access, audit, redaction, snapshots
from topology.clients.describe import describe
from topology.clients.forms import read_trace
from topology.models import Broker, Role
from topology.models.client_convention import read_conventions
from topology.snapshots import Latest


@require_safe
@access.with_broker(Role.OPERATOR)
def parked_message(request: HttpRequest, broker: Broker, pk: int) -> HttpResponse:
    row = _row(broker, pk)
    audit.record(request.user, "parked message read", broker=broker, what=_describe(row))
    rules = redaction.rules_for(request.user, broker)
    (seen,) = peek.number_messages([row.message])
    shown = show_whole(seen, redaction=rules)
    known = snapshots.fresh(broker)
    headers = rules.headers(row.message.headers)
    context: dict[str, Any] = {
        "broker": broker,
        "row": seen_parked_message(row, rules),
        "shown": shown,
        "client": describe(
            headers,
            rules.body(row.message.body),
            row.routing_key,
            read_conventions(broker),
        ),
        "trace": read_trace(headers),
        "latest": known,
        "steps": build_history(
            rules.message(seen.message), seen.history, then=build_later_steps(row, rules)
        ),
        "most_deaths": MOST_DEATHS if len(seen.history.deaths) > MOST_DEATHS else 0,
        "rules": rules,
        "may_admin": access.may(request.user, broker, Role.ADMIN),
        **_neighbours(row),
        **_replay(row, known),
    }
    if not shown.hides_history:
        # topology.graph.svg escapes every text that it writes.
        context["path"] = SafeString(path_diagram(seen.message, seen.history, row.queue))
    return render(request, "delayboard/parked_message.html", context)


@require_safe
@access.with_broker(Role.OPERATOR)
def parked_message_body(request: HttpRequest, broker: Broker, pk: int) -> HttpResponse:
    """The body as it was in the queue, byte for byte, as a download."""
    row = _row(broker, pk)
    if redaction.rules_for(request.user, broker).body_paths:
        audit.record(
            request.user, "body downloaded", broker=broker, what=_describe(row), outcome="refused"
        )
        raise PermissionDenied(
            "A redaction rule hides parts of bodies, so you cannot download a body."
        )
    audit.record(request.user, "body downloaded", broker=broker, what=_describe(row))
    answer = HttpResponse(bytes(row.body.data), content_type="application/octet-stream")
    answer["Content-Disposition"] = f'attachment; filename="parked-message-{row.pk}.bin"'
    answer["X-Content-Type-Options"] = "nosniff"
    return answer


def _row(broker: Broker, pk: int) -> ParkedMessage:
    rows = ParkedMessage.objects.select_related("group", "state_by", "repeat_of", "broker")
    return get_object_or_404(rows, broker=broker, pk=pk)


def _describe(row: ParkedMessage) -> str:
    return f"{row.pk} of {row.queue}"


def _neighbours(row: ParkedMessage) -> dict[str, int | None]:
    """The ids of those beside it in its group that are in the same state."""
    group = ParkedMessage.objects.filter(group=row.group_id, state=row.state)
    return {
        "newer": group.filter(pk__gt=row.pk).order_by("pk").values_list("pk", flat=True).first(),
        "older": group.filter(pk__lt=row.pk).order_by("-pk").values_list("pk", flat=True).first(),
    }


def _replay(row: ParkedMessage, known: Latest) -> dict[str, Any]:
    """Where a replay would go and what would become of it; nothing while that is unknown."""
    if known.snapshot is None:
        return {}
    return {"is_checked": True, "checked": check_default(row, known.snapshot)}
