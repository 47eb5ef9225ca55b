"""Changes of waiting messages: the dry run, the request, and the outcome of each."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from analytics.models import ScheduledMessage
from analytics.scheduled.pages import export
from analytics.scheduled.queries import listing
from analytics.scheduled.queries.listing import parse
from delayboard.changes.check import ChangeVerdict, bound_again_when, check, is_read, wait_queue
from delayboard.changes.request import READ, count_other_messages, undo
from delayboard.changes.request import request as request_changes
from delayboard.models import (
    ChangeKind,
    ChangeState,
    Interception,
    InterceptionState,
    ScheduledChange,
)
from delayboard.models.background_task import CHANGES, is_missing
from delayboard.models.scheduled_change import OPEN
from delayboard.views.confirm_production import Effect, confirmation
from topology import access, redaction
from topology.broker.errors import BrokerError
from topology.content.text import count_of
from topology.database import paging
from topology.delays import MOMENT_HELP, MomentError, read_moment
from topology.models import Broker, Role, Work
from topology.models.work import ENDED

# Most messages of one request, which is one transaction and one page.
MOST = 200
SHOWN = 200


def scheduled_change(request: HttpRequest) -> HttpResponse:
    """GET shows what a change of the chosen messages would do, POST requests it."""
    asked = request.POST if request.method == "POST" else request.GET
    kind, now = _kind(asked.get("kind", "")), datetime.now(UTC)
    if request.method != "POST" and "all" in request.GET:
        matching = _matching(request, now)
        if isinstance(matching, HttpResponse):
            return matching
        rows = matching
    else:
        found = _rows(request, asked.getlist("message"))
        if isinstance(found, HttpResponse):
            return found
        rows = found
    text, is_moved = asked.get("to", ""), kind == ChangeKind.RESCHEDULE
    context: dict[str, Any] = {"kind": kind, "rows": rows, "to": text, "number": len(rows)}
    context["moment_help"] = MOMENT_HELP
    try:
        to = read_moment(text, now) if is_moved and (text or request.method == "POST") else None
        if request.method == "POST":
            return _request(request, rows, kind, to)
        verdicts = check(rows, kind, now, to)
    except (MomentError, BrokerError) as error:
        context |= {"problem": str(error), "verdicts": [ChangeVerdict(row) for row in rows]}
    else:
        good = [verdict for verdict in verdicts if not verdict.problem]
        context["publishes_copy"] = any(verdict.is_copied for verdict in good)
        context |= {"verdicts": verdicts, "good": len(good), "others": count_other_messages(good)}
        # What was shown is requested, however long somebody reads it.
        context |= {"new_due_at": to, "fixed_to": to.isoformat() if to else ""}
        context |= {"worker_is_missing": is_missing(CHANGES)}
        context["is_checked"] = bool(to) or not is_moved
    return render(request, "delayboard/scheduled_change.html", context)


@require_safe
def scheduled_changes(request: HttpRequest) -> HttpResponse:
    """The latest changes, and the errors of interceptions."""
    choice = access.choose_brokers(request)
    brokers = choice.shown
    rows = ScheduledChange.objects.filter(broker__in=brokers)
    shown = rows.select_related("topology", "broker", "requested_by")
    operated = access.visible_brokers(request.user, Role.OPERATOR)
    kept = Interception.objects.filter(broker__in=brokers).exclude(state=InterceptionState.CLOSED)
    context = {
        "broker": choice.chosen,
        "shows_brokers": choice.only is None,
        "worker_is_missing": rows.filter(state__in=OPEN).exists() and is_missing(CHANGES),
        "page": paging.read_page(shown, request.GET.get("after", ""), SHOWN),
        "open": OPEN,
        "operated": set(operated.values_list("pk", flat=True)),
        "interceptions": kept.select_related("work", "broker"),
        "readings": Work.objects.filter(kind=READ, broker__in=brokers).exclude(state__in=ENDED),
    }
    return render(request, "delayboard/scheduled_changes.html", context)


@require_POST
def scheduled_change_undo(request: HttpRequest, pk: int) -> HttpResponse:
    change = get_object_or_404(ScheduledChange.objects.select_related("broker"), pk=pk)
    access.require(request.user, change.broker, Role.OPERATOR, request=request)
    is_undone = undo(request.user, change)
    change.refresh_from_db()
    if is_undone:
        messages.success(request, "The change is undone.")
    elif change.state == ChangeState.UNDONE:
        messages.info(request, "The change is already undone.")
    else:
        messages.error(request, "The change was not undone. It already took effect.")
    return redirect("scheduled_changes")


def _request(
    request: HttpRequest, rows: list[ScheduledMessage], kind: ChangeKind, to: datetime | None
) -> HttpResponse:
    broker = rows[0].broker
    until = f" to {to:%Y-%m-%d %H:%M:%S} UTC" if to else ""
    sentence = f"{kind.label.capitalize()}: {count_of(len(rows), 'waiting message')}{until}."
    queues = sorted({wait_queue(row) for row in rows if is_read(row)})
    if queues:
        names = ", ".join(f"“{queue}”" for queue in queues[:5])
        sentence += (
            f" It takes all messages out of {names} and puts the others back in their places. "
            " Messages that are due meanwhile are a few seconds late."
        )
    times = sorted({when for row in rows if (when := bound_again_when(row))})
    sentence += "".join(
        f" If {when} during the interception, RabbitMQ can deliver messages twice."
        for when in times
    )
    effect = Effect(sentence, "/scheduled/")
    page = confirmation(request, broker, "Request change", effect, is_needed=bool(queues or times))
    if page:
        return page
    verdicts = request_changes(request.user, rows, kind, to)
    problems = [verdict.problem for verdict in verdicts if verdict.problem]
    good = len(verdicts) - len(problems)
    # With the reasons: what the dry run showed may be different by now.
    requested = f"{good} of {len(rows)} changes are requested."
    if not problems:
        requested = "1 change is requested." if good == 1 else f"{good} changes are requested."
    sentence = " ".join((requested, *dict.fromkeys(problems)))
    add_message = messages.success if not problems else messages.warning if good else messages.error
    add_message(request, sentence)
    return redirect("scheduled_changes")


def _rows(request: HttpRequest, names: list[str]) -> list[ScheduledMessage] | HttpResponse:
    """The chosen messages, all of one broker; the list with a sentence for none, or too many."""
    numbers = {paging.row_number(name) for name in names}
    found = ScheduledMessage.objects.filter(pk__in=[one for one in numbers if one is not None])
    rows = list(found.select_related("broker", "topology__broker").order_by("due_at", "pk")[:MOST])
    brokers: set[Broker] = {row.broker for row in rows}
    if len(brokers) != 1 or len(numbers) > MOST:
        messages.error(
            request,
            f"Nothing was changed. Select waiting messages of one broker, at most {MOST}. For more "
            "messages, use the command scheduled.",
        )
        return redirect("analytics:scheduled")
    access.require(request.user, rows[0].broker, Role.OPERATOR, request=request)
    return rows


def _matching(request: HttpRequest, now: datetime) -> list[ScheduledMessage] | HttpResponse:
    """All that the filter of the list matches; the list with a sentence where that cannot be."""
    choice = access.choose_brokers(request, Role.OPERATOR)
    brokers = choice.shown
    hidden = redaction.rules_by_broker(request.user, brokers)
    wanted = listing.allowed(parse(request.GET.dict(), now), brokers, hidden)
    rows: list[ScheduledMessage] = []
    if not choice.visible:
        raise PermissionDenied("This action needs the role operator on a broker.")
    if not wanted.problems:
        found = listing.filter_waiting(brokers, wanted, now).select_related(
            "broker", "topology__broker"
        )
        rows = list(islice(export.read(found, wanted.query), MOST + 1))
        if rows and len(rows) <= MOST and len({row.broker_id for row in rows}) == 1:
            return rows
    sentence = " ".join(wanted.problems.values())
    if not sentence and not rows:
        sentence = "No waiting message that can be changed matches the filter."
    sentence = sentence or (
        f"The filter has to match messages of one broker, at most {MOST}. Narrow it, or use the "
        "command scheduled."
    )
    messages.error(request, sentence)
    return redirect(reverse("analytics:scheduled") + wanted.url())


def _kind(text: str) -> ChangeKind:
    try:
        return ChangeKind(text or ChangeKind.CANCEL)
    except ValueError as error:
        raise Http404 from error
