"""A dead letter as a person reads it, and what a client convention would read in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import BinaryField
from django.db.models.functions import Substr

from delayboard.dead_letters.parked.redact_cause import hides_history
from delayboard.dead_letters.queues.peek import PeekedMessage, number_messages
from delayboard.dead_letters.replay.batch_items import CheckedTarget
from delayboard.dead_letters.replay.edit_headers import HeaderRow, make_header_rows
from delayboard.dead_letters.replay.options import DEFAULTS
from delayboard.dead_letters.replay.targets import Target, Targets
from delayboard.dead_letters.replay.verdicts import MessageChecker
from delayboard.models import MessageGroup, ParkedMessage
from topology.clients.conventions import Convention
from topology.clients.describe import Description, describe, describe_message, find_library
from topology.clients.parts import MOST_JSON_BYTES, Parts
from topology.content.bodies import HEX_BYTES, Body, BodyLine, folded, hex_dump, show_body, unpack
from topology.delays import format_delay
from topology.message import Forwarder, Message
from topology.models.client_convention import read_conventions
from topology.redaction import HIDDEN, MASKED_BYTES, NOTHING, TOO_LONG, Redaction
from topology.routing.outcome import RouteOutcome, Walk
from topology.routing.remaining_route import trace_remaining_route
from topology.snapshot import Snapshot

MOST = 10


@dataclass(frozen=True)
class Shown:
    """`lines` and `hex` are there where a page is about this message alone.

    `is_masked`: something of it was redacted; `hides_body`: all of the body was.
    """

    peeked_message: PeekedMessage
    body: Body
    headers: tuple[HeaderRow, ...]
    properties: tuple[HeaderRow, ...]
    target: Target | None
    onward: str
    lines: tuple[BodyLine, ...] = ()
    hex: str = ""
    is_masked: bool = False
    hides_body: bool = False
    hides_history: bool = False


def show(
    peeked_message: PeekedMessage,
    targets: Targets,
    *,
    queue: str = "",
    version: tuple[int, ...] = (),
    redaction: Redaction = NOTHING,
    forwarders: Sequence[Forwarder] = (),
    now_ms: int = 0,
) -> Shown:
    """`queue` is the message's queue; `onward` describes its further path without any action.

    `forwarders` are at work at the broker; `now_ms` is now in UTC, for the headers that they read.
    """
    message, history = peeked_message.message, peeked_message.history
    onward = ""
    if queue:
        onward = describe_walk(
            trace_remaining_route(
                targets.index,
                message,
                queue,
                version=version,
                forwarders=forwarders,
                now_ms=now_ms,
            )
        )
    read = describe_message(message, targets.own)
    return Shown(
        peeked_message,
        target=targets.choose_by(history, read).target,
        onward=onward,
        **_content(message, redaction),
    )


def show_whole(peeked_message: PeekedMessage, *, redaction: Redaction = NOTHING) -> Shown:
    """Everything of one message, whatever is known of its broker."""
    data = _make_readable(peeked_message.message, redaction)
    content = _content(peeked_message.message, redaction, data)
    dump = "" if content["hides_body"] else hex_dump(data[:HEX_BYTES])
    return Shown(peeked_message, target=None, onward="", lines=folded(data), hex=dump, **content)


def _content(
    message: Message, redaction: Redaction, readable: bytes | None = None
) -> dict[str, Any]:
    """`readable` is what `_make_readable` gives, where the caller has it already."""
    headers = redaction.headers(message.headers)
    properties = message.properties
    kind, encoding = properties.content_type or "", properties.content_encoding or ""
    body = show_body(message.body, kind, encoding)
    hides_body = False
    if redaction.body_paths and message.body:
        data = _make_readable(message, redaction) if readable is None else readable
        hides_body = data == HIDDEN.encode()
        form = show_body(data)
        is_long = max(body.size, body.unpacked or 0) > MASKED_BYTES
        notes = (*body.notes, TOO_LONG) if hides_body and is_long else body.notes
        body = replace(form, size=body.size, unpacked=body.unpacked, notes=notes)
    return {
        "body": body,
        "headers": make_header_rows(headers),
        "properties": make_header_rows(properties.stated()),
        "is_masked": headers != message.headers or bool(redaction.body_paths and message.body),
        "hides_body": hides_body,
        "hides_history": hides_history(redaction),
    }


def _make_readable(message: Message, redaction: Redaction) -> bytes:
    """The unpacked body, with what the rules hide in it hidden."""
    unpacked = unpack(message.body, message.properties.content_encoding or "")
    return redaction.body(unpacked.data)


def describe_walk(walked: Walk) -> str:
    """What becomes of a message that nobody takes; "" when it just stays where it is."""
    if all(outcome.ending == "delivered" and len(outcome.hops) < 2 for outcome in walked.outcomes):
        return ""
    return " ".join(_end(outcome) for outcome in walked.outcomes)


def _end(outcome: RouteOutcome) -> str:
    latest = outcome.latest if outcome.ending in ("delivered", "dropped") else None
    return outcome.describe("" if latest is None else f" within {format_delay(latest)}")


@dataclass(frozen=True)
class Example:
    """`shown` is made of the body's first bytes alone; `row.size` is the size of all of it."""

    row: ParkedMessage
    shown: Shown


def example(key: int, rules: Redaction) -> Example | None:
    """The message with this id; None when it was deleted. Never reads a whole long body."""
    # One more than rules look into: what is longer is hidden whole, as everywhere.
    begun = Substr("body__data", 1, MASKED_BYTES + 1, output_field=BinaryField())
    row = ParkedMessage.objects.filter(pk=key).annotate(begun=begun).first()
    if row is None:
        return None
    message = replace(row.without_body, body=bytes(row.begun or b""))
    (parked_message,) = number_messages([message])
    return Example(row, show_whole(parked_message, redaction=rules))


@dataclass(frozen=True)
class Tried:
    """One message: whether it has the marks of the convention, and what is read then.

    `target` is where a replay would send it, None while the broker is unknown or a rule hides it.
    """

    row: ParkedMessage
    is_recognized: bool
    read: Description | None
    target: CheckedTarget | None


def try_convention(
    group: MessageGroup, convention: Convention, rules: Redaction, snapshot: Snapshot | None
) -> list[Tried]:
    """The newest messages of the group as the convention reads them, redacted by the rules."""
    others = [one for one in read_conventions(group.broker) if one.name != convention.name]
    own = (convention, *others)
    places = tuple(
        (name, fact.pointer) for name, facts in convention.facts.items() for fact in facts
    )
    hides = hides_history(replace(rules, own_places=(*rules.own_places, *places)))
    checker = None
    if snapshot is not None and not hides:
        checker = MessageChecker(group.broker, DEFAULTS, snapshot, own)
    rows = ParkedMessage.objects.filter(group__in=group.member_ids).select_related("broker")
    return [
        _try_message(row, convention, own, rules, checker) for row in rows.order_by("-pk")[:MOST]
    ]


def _try_message(
    row: ParkedMessage,
    convention: Convention,
    own: tuple[Convention, ...],
    rules: Redaction,
    checker: MessageChecker | None,
) -> Tried:
    message = row.message if row.size <= MOST_JSON_BYTES else row.without_body
    shown = (rules.headers(message.headers), rules.body(message.body), row.routing_key)
    library = find_library(Parts(message.headers, message.body, row.routing_key), own)
    target = None
    if checker is not None:
        target = checker.check_message(row.group_id, row.queue, bytes(row.properties), row.pk)
    is_recognized = library is not None and library.name == convention.name
    return Tried(row, is_recognized, describe(*shown, own), target)
