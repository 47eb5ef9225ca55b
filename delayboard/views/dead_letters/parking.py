"""Parking: watch a queue, park what is in it; discard and restore."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from analytics.events import clean
from delayboard.dead_letters import discard
from delayboard.dead_letters.parked import park_request
from delayboard.dead_letters.parked.redact_cause import seen_group
from delayboard.dead_letters.queues.confirmed import Undecided, decide
from delayboard.dead_letters.search import QueryError, reveals
from delayboard.models import MessageGroup, ParkedChange, Parking
from delayboard.models.background_task import PARKED_MESSAGES, PARKING, is_missing
from delayboard.views.confirm_production import Effect, confirmed_on_production
from delayboard.views.queue_page import queue_page
from delayboard.views.show_refusal import show_refusal
from topology import access, redaction, snapshots
from topology.content.text import count_of
from topology.database import paging
from topology.models import Broker, Role
from topology.redaction import HIDDEN
from topology.snapshots import Latest
from topology.views.redirect_back import next_of

# Most messages of one request, more than a page of messages has.
MOST_PARKED_MESSAGES = 1000
# Most queues that one button starts to watch.
MOST_WATCHED = 50


@require_POST
@access.with_broker(Role.OPERATOR)
def watch(request: HttpRequest, broker: Broker) -> HttpResponse:
    """Start or stop automatic parking; with `mark` of queues that are not marked yet."""
    names = [clean(name) for name in request.POST.getlist("name")[:MOST_WATCHED]] or [""]
    on = request.POST.get("on") == "1"
    known = snapshots.fresh(broker) if on else None
    snapshot = known.snapshot if known else None
    for name in names:
        which = f" for “{name}”" if len(names) > 1 else ""
        refusals = (park_request.ParkError, Undecided)
        with show_refusal(request, f"Nothing was changed{which}.", *refusals):
            with transaction.atomic():
                if on and request.POST.get("mark") == "1":
                    decide(request.user, broker, name, snapshot, is_confirmed=True)
                warning = park_request.set_automatic_parking(
                    request.user, broker, name, snapshot, on=on
                )
            done = "is parked automatically" if on else "is no longer parked automatically"
            messages.success(request, f"“{name}” {done}.")
            if warning:
                messages.warning(request, warning)
    if known is not None:
        _warn_silent(request, broker, known)
    return redirect(next_of(request, queue_page(broker, names[0])))


@require_POST
@access.with_broker(Role.OPERATOR)
def park(request: HttpRequest, broker: Broker) -> HttpResponse:
    name = clean(request.POST.get("name", ""))
    known = snapshots.fresh(broker)
    snapshot = known.snapshot
    try:
        if request.POST.get("all") == "1":
            parking = park_request.park_all(request.user, broker, name, snapshot)
        else:
            handles = request.POST.getlist("message")
            parking = park_request.park_these(request.user, broker, name, snapshot, handles)
    except park_request.ParkError as error:
        messages.error(request, f"Nothing was parked. {error}")
        return redirect(next_of(request, queue_page(broker, name)))
    _warn_silent(request, broker, known)
    return redirect("parking", broker.slug, parking.pk)


@require_safe
@access.with_broker(Role.VIEWER)
def parking(request: HttpRequest, broker: Broker, pk: int) -> HttpResponse:
    rows = Parking.objects.select_related("work", "created_by")
    found = get_object_or_404(rows, pk=pk, broker=broker)
    kept = found.parked - found.repeats
    missing = None if found.requested is None else max(0, found.requested - kept)
    context = {
        "broker": broker,
        "parking": found,
        "missing": missing,
        "queue_page": queue_page(broker, found.queue),
        "may_operate": access.may(request.user, broker, Role.OPERATOR),
        "worker_is_missing": is_missing(PARKING),
    }
    return render(request, "delayboard/parking.html", context)


@require_POST
@access.with_broker(Role.OPERATOR, changes=False)
def parking_cancel(request: HttpRequest, broker: Broker, pk: int) -> HttpResponse:
    found = get_object_or_404(Parking.objects.select_related("work"), pk=pk, broker=broker)
    with show_refusal(request, "", park_request.ParkError):
        park_request.cancel(request.user, found)
    return redirect("parking", broker.slug, pk)


def _describe_discard(request: HttpRequest, broker: Broker) -> Effect:
    sent = request.POST
    if paging.row_number(sent.get("group", "")) is not None:
        what = "All parked messages of the group"
    elif sent.get("all") == "1":
        query = sent.get("q", "")
        what = f"All parked messages that match “{query}”" if query else "All parked messages"
    else:
        what = f"Selected parked messages ({len(sent.getlist('parked_message'))})"
    back = reverse("parked_messages", args=[broker.slug])
    return Effect(f"{what} are discarded. Discarded messages can be restored.", back)


@require_POST
@access.with_broker(Role.OPERATOR)
@confirmed_on_production("Discard messages", _describe_discard)
def parked_messages_discard(request: HttpRequest, broker: Broker) -> HttpResponse:
    return _change(request, broker, discard.DISCARD, "discarded")


@require_POST
@access.with_broker(Role.OPERATOR)
def parked_messages_restore(request: HttpRequest, broker: Broker) -> HttpResponse:
    return _change(request, broker, discard.RESTORE, "restored")


@require_safe
@access.with_broker(Role.VIEWER)
def parked_messages_change(request: HttpRequest, broker: Broker, pk: int) -> HttpResponse:
    """How far a change of many messages is."""
    rows = ParkedChange.objects.select_related("work", "created_by", "group")
    found = get_object_or_404(rows, pk=pk, broker=broker)
    rules = redaction.rules_for(request.user, broker)
    context = {
        "broker": broker,
        "change": found,
        "group": seen_group(found.group, rules) if found.group else None,
        "query": HIDDEN if reveals(rules, found.query) else found.query,
        "may_operate": access.may(request.user, broker, Role.OPERATOR),
        "worker_is_missing": is_missing(PARKED_MESSAGES),
    }
    return render(request, "delayboard/parked_messages_change.html", context)


@require_POST
@access.with_broker(Role.OPERATOR, changes=False)
def parked_messages_change_cancel(request: HttpRequest, broker: Broker, pk: int) -> HttpResponse:
    found = get_object_or_404(ParkedChange.objects.select_related("work"), pk=pk, broker=broker)
    with show_refusal(request, "", discard.ChangeError):
        discard.cancel(request.user, found)
    return redirect("parked_messages_change", broker.slug, pk)


def _change(request: HttpRequest, broker: Broker, kind: discard.Kind, done: str) -> HttpResponse:
    back = next_of(request, reverse("parked_messages", args=[broker.slug]))
    group = paging.row_number(request.POST.get("group", ""))
    if request.POST.get("all") != "1" and group is None:
        keys = [paging.row_number(text) for text in request.POST.getlist("parked_message")]
        chosen = [key for key in keys if key is not None][:MOST_PARKED_MESSAGES]
        number = discard.change_these(request.user, broker, kind, chosen) if chosen else 0
        _report_number(request, number, done)
        _warn_busy(request, discard.in_replays(broker, chosen))
        return redirect(back)
    asked: dict[str, Any] = {
        # A search takes no notice of it either.
        "query": request.POST.get("q", "").replace("\x00", "")[:500],
        "newest": paging.row_number(request.POST.get("newest", "")),
    }
    if group is not None:
        asked["group"] = get_object_or_404(MessageGroup, pk=group, broker=broker)
    try:
        change = discard.change_all(request.user, broker, kind, **asked)
    except (QueryError, discard.ChangeError) as error:
        messages.error(request, f"Nothing was {done}. {error}")
        return redirect(back)
    if change.work is not None:
        return redirect("parked_messages_change", broker.slug, change.pk)
    _report_number(request, change.changed, done)
    if change.group is not None:
        _warn_busy(request, change.group.replaying + change.group.delayed)
    return redirect(back)


def _warn_silent(request: HttpRequest, broker: Broker, known: Latest) -> None:
    """The request is saved, and waits for the broker."""
    if known.trouble:
        messages.warning(
            request,
            f"{broker.name} does not answer. The request waits for the broker. {known.trouble}",
        )


def _report_number(request: HttpRequest, number: int, done: str) -> None:
    if number:
        messages.success(request, f"{count_of(number, 'parked message')} {done}.")
    else:
        messages.error(request, f"Nothing was {done}, because no selected message can be {done}.")


def _warn_busy(request: HttpRequest, number: int) -> None:
    if number:
        unchanged = count_of(number, "message", "is")
        messages.warning(
            request,
            f"{unchanged} unchanged: in a replay, or in a delay without observed delivery.",
        )
