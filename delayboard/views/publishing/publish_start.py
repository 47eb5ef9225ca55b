"""What the publish form begins with: a link, a template, or a copy of a message that was seen."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.http import Http404, HttpRequest
from django.shortcuts import get_object_or_404

from analytics.models import ScheduledBody, ScheduledMessage
from delayboard.dead_letters.parked.redact_cause import hidden_columns
from delayboard.dead_letters.queues import peek
from delayboard.dead_letters.replay.edit_headers import (
    EditError,
    HeaderRow,
    explain_lock,
    read_headers,
)
from delayboard.models import ParkedMessage, PublishTemplate
from topology import access, audit, redaction, snapshots
from topology.broker.errors import BrokerError
from topology.broker.properties.read import read_properties
from topology.database import paging
from topology.deaths import read_history
from topology.delays import format_delay
from topology.message import PUBLISHED_AT_HEADER, TRACKING_HEADER, Message
from topology.models import Broker, Role, State
from topology.patterns.pattern import ParamsError
from topology.redaction import Redaction

# Largest body that is filled into the form: a longer one is slow there.
LARGEST_BODY = 500_000
COPIED = ("content_type", "content_encoding", "correlation_id", "reply_to", "type", "app_id")
# Most digits of an expiration that RabbitMQ takes.
LONGEST_TTL = 10
OWN_HEADERS = frozenset({TRACKING_HEADER, PUBLISHED_AT_HEADER})
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


@dataclass(frozen=True)
class Clone:
    """Values of the form by field, and sentences about what they do not contain."""

    values: dict[str, Any]
    notes: tuple[str, ...] = ()


def clone_message(message: Message, rules: Redaction) -> Clone:
    """A copy for the place to which the message was published before its first death, if no rule
    hides that. Never raises.
    """
    rows, header_notes = _header_rows(message, rules)
    body, body_notes = _body(message, rules)
    deaths = read_history(rules.headers(message.headers)).deaths
    first = deaths[0] if deaths else None
    properties = message.properties
    target = {
        "exchange": first.exchange if first else message.exchange,
        "routing_key": first.routing_key if first else message.routing_key,
    }
    hidden = hidden_columns(rules).intersection(target)
    names = ", ".join(sorted(hidden)).replace("_", " ")
    notes = [f"Fields that a redaction rule hides are not copied: {names}."] if hidden else []
    values: dict[str, Any] = {
        "mode": "exchange",
        **target,
        **dict.fromkeys(hidden, ""),
        "headers": rows,
        "persistent": properties.delivery_mode == 2,
        "priority": properties.priority,
        **body,
        **{name: getattr(properties, name) or "" for name in COPIED},
    }
    ttl = properties.expiration or ""
    if ttl.isdecimal() and len(ttl) <= LONGEST_TTL:
        values["expiration"] = format_delay(timedelta(milliseconds=int(ttl)))
    return Clone(values, (*notes, *header_notes, *body_notes))


def _header_rows(message: Message, rules: Redaction) -> tuple[list[HeaderRow], list[str]]:
    """The rows of headers without what RabbitMQ and Delayboard set, and without what is hidden or
    cannot be typed.
    """
    try:
        found = read_headers(message.properties.raw)
    except EditError as error:
        return [], [f"The headers are not copied: {error}"]
    headers = message.headers
    rows, omitted = [], []
    for one in found:
        if one.name in OWN_HEADERS or explain_lock(one.name):
            continue
        seen = {one.name: headers.get(one.name)}
        # A form changes the ends of lines.
        if one.lock or "\r" in one.text or rules.headers(seen) != seen:
            omitted.append(one.name)
        else:
            rows.append(one)
    if not omitted:
        return rows, []
    return rows, [
        f"Headers that are hidden or cannot be typed are not copied: {', '.join(omitted)}."
    ]


def _body(message: Message, rules: Redaction) -> tuple[dict[str, str], list[str]]:
    body = message.body
    if rules.body_paths and body:
        return {}, ["A redaction rule hides parts of bodies from you, so the body is not copied."]
    if len(body) > LARGEST_BODY:
        return {}, ["The body is larger than 500 kB, so it is not copied. Select it as a file."]
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    # A form changes the ends of lines, and takes no NUL.
    if "\0" in text or "\r" in text:
        return {"body_format": "base64", "body": b64encode(body).decode()}, []
    return {"body_format": "text", "body": text}, []
