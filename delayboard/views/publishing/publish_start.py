"""What the publish form begins with: a link, a template, or a copy of a message that was seen."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest
from django.shortcuts import get_object_or_404

from analytics.models import ScheduledBody, ScheduledMessage
from delayboard.dead_letters.queues import peek
from delayboard.forms.clone import Clone, clone_message
from delayboard.models import ParkedMessage, PublishTemplate
from topology import access, audit, redaction, snapshots
from topology.broker.errors import BrokerError
from topology.broker.properties.read import read_properties
from topology.database import paging
from topology.delays import format_delay
from topology.message import Message
from topology.models import Broker, Role, State
from topology.patterns.pattern import ParamsError

NO_BODY = "Delayboard did not store this message, so body, headers and properties are not copied."
PEEK_COSTS = (
    "The message was not copied. A copy needs another peek, and each peek of this queue uses one "
    "delivery of each message. Park the message, then copy the parked message."
)
MESSAGE_MISSING = (
    "The message is no longer among the first messages of the queue, so it was not copied."
)


def read_start(request: HttpRequest) -> Clone:
    """The first values of the form. Raises Http404 and PermissionDenied."""
    asked = request.GET
    if "template" in asked:
        brokers = access.visible_brokers(request.user, Role.OPERATOR)
        number = paging.row_number(asked["template"])
        row = get_object_or_404(PublishTemplate, broker__in=brokers, pk=number)
        return Clone(row.values)
    kind, _, number_text = asked.get("clone", "").partition("-")
    number = paging.row_number(number_text)
    if not kind:
        return Clone(asked.dict())
    if kind == "parked":
        return _of_parked(request, number)
    if kind == "scheduled":
        return _of_scheduled(request, number)
    raise Http404


def _of_parked(request: HttpRequest, number: int | None) -> Clone:
    row = get_object_or_404(ParkedMessage.objects.select_related("broker", "body"), pk=number)
    access.require(request.user, row.broker, Role.OPERATOR)
    what = f"{row.pk} of {row.queue}"
    audit.record(request.user, "message copied", broker=row.broker, what=what)
    return _clone(request, row.broker, row.message)


def _of_scheduled(request: HttpRequest, number: int | None) -> Clone:
    rows = ScheduledMessage.objects.select_related("broker", "topology")
    row = get_object_or_404(rows, pk=number)
    access.require(request.user, row.broker, Role.OPERATOR)
    kept = ScheduledBody.objects.filter(message=row).first()
    what = f"{row.topology or row.broker}: {row}"
    audit.record(request.user, "message copied", broker=row.broker, what=what)
    raw = bytes(kept.properties) if kept else b""
    properties = read_properties(raw or b"\x00\x00")
    message = Message(row.exchange, row.routing_key, properties, bytes(kept.body) if kept else b"")
    made = _clone(request, row.broker, message)
    notes = made.notes if raw else (NO_BODY, *made.notes)
    return Clone(made.values | _through(row), notes)


def _through(row: ScheduledMessage) -> dict[str, Any]:
    """The way into its topology, where it can be used."""
    topology = row.topology
    if topology is None or topology.state != State.APPLIED:
        return {}
    try:
        has_targets = bool(topology.pattern.targets(topology.parsed))
    except ParamsError:
        return {}
    return {
        "mode": "topology",
        "topology": topology.slug,
        "delay": format_delay(row.requested_delay) if row.requested_delay else "",
        "target": "" if has_targets else row.destination,
        "exchange": "",
        "routing_key": "",
        "broker": "",
    }


def clone_peeked(request: HttpRequest) -> Clone:
    """A message of a live queue, by its handle: peeks again, where that costs nothing.

    Raises Http404 and PermissionDenied.
    """
    brokers = access.visible_brokers(request.user, Role.OPERATOR)
    broker = get_object_or_404(brokers, slug=request.POST.get("clone_broker", ""))
    name, handle = request.POST.get("clone_queue", ""), request.POST["clone"]
    known = snapshots.fresh(broker)
    queue = known.snapshot.definitions.queue(name) if known.snapshot else None
    if known.snapshot is None or queue is None:
        return Clone({"broker": broker.slug}, (known.error or f"{broker.name} has no such queue.",))
    try:
        with audit.recorded(request.user, "queue peeked", broker=broker, what=name):
            seen = peek.peek_queue(broker, queue, known.snapshot)
    except peek.PeekRefused as error:
        why = PEEK_COSTS if error.permission.budget else f"The message was not copied. {error}"
        return Clone({"broker": broker.slug}, (why,))
    except BrokerError as error:
        return Clone({"broker": broker.slug}, (f"The message was not copied. {error}",))
    for one in seen.peeked_messages:
        if one.handle == handle:
            return _clone(request, broker, one.message)
    return Clone({"broker": broker.slug}, (MESSAGE_MISSING,))


def _clone(request: HttpRequest, broker: Broker, message: Message) -> Clone:
    made = clone_message(message, redaction.rules_for(request.user, broker))
    return Clone({"broker": broker.slug, **made.values}, made.notes)
