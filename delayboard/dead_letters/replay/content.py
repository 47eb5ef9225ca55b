"""What is sent of a message: as it was parked, unwrapped, with counters reset, or as it was edited.

What a replay publishes of it is made here too, and what the event log states of that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from analytics import facts
from delayboard.models import ParkedMessage, ReplayBatch, ReplayEdit
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import build_properties, edit_properties, read_properties
from topology.clients.conventions import Convention
from topology.clients.describe import describe, find_library
from topology.clients.parts import Parts
from topology.clients.restart import Edit, open_envelope, restart
from topology.database.select_keys import match_keys
from topology.message import (
    REPLAY_HEADER,
    REPLAYS_HEADER,
    Headers,
    Message,
    Properties,
    Publish,
    Route,
    content_id,
    kept_by_streams,
)
from topology.redaction import Redaction
from topology.transfer.prepare import prepare

_COLUMNS = (
    "pk",
    "properties",
    "body__data",
    "queue",
    "content_id",
    "redelivered",
    "exchange",
    "routing_key",
)
# Property in EasyNetQ's JSON (MessageProperties.cs) -> property of AMQP.
_TEXTS = {
    "ContentType": "content_type",
    "ContentEncoding": "content_encoding",
    "CorrelationId": "correlation_id",
    "ReplyTo": "reply_to",
    "MessageId": "message_id",
    "Type": "type",
    "AppId": "app_id",
}
_NUMBERS = {"DeliveryMode": ("delivery_mode", 2), "Priority": ("priority", 255)}


class Content(NamedTuple):
    """`queue`, `exchange` and `routing_key` are those of the message; `known` is its content id.

    For an edited message, or one whose counters were reset, `known` is "", and `failed` are the
    headers that it was parked with.
    """

    properties: Properties
    body: bytes
    queue: str
    known: str
    redelivered: bool
    exchange: str
    routing_key: str
    failed: Headers | None = None

    def make_fact(self, publish: Publish, name: str) -> facts.Stated:
        """The fact that it was replayed under this name, without the body."""
        properties = self.properties
        known = (
            facts.id_of(properties, self.known, lambda: self.body)
            if self.known
            else content_id(kept_by_streams(properties), self.body)
        )
        message = Message(self.exchange, self.routing_key, properties, b"", self.redelivered)
        return facts.Stated(
            message,
            known,
            len(self.body),
            name,
            publish.exchange,
            publish.routing_key,
            self.failed,
        )


def read_contents(
    items: Sequence[tuple[int, int | None]], batch: ReplayBatch, *, edits: bool = True
) -> dict[int, Content]:
    """The contents of these items and their messages, by item; deleted messages are omitted.

    `edits`: whether there may be any: what a person edited is sent as it was edited.
    """
    parked_messages = {parked_message for _, parked_message in items if parked_message is not None}
    if not parked_messages:
        return {}
    rows = (
        ParkedMessage.objects.filter(match_keys(parked_messages)).order_by().values_list(*_COLUMNS)
    )
    # PostgreSQL's driver hands out memory.
    found = {
        key: Content(read_properties(bytes(properties)), bytes(body), *others)
        for key, properties, body, *others in rows
    }
    read = {
        item: found[parked_message] for item, parked_message in items if parked_message in found
    }
    for item, content in read.items():
        if (sent := make_sent(batch, content.properties, content.body)) is not None:
            failed = content.properties.headers
            read[item] = content._replace(properties=sent[0], body=sent[1], known="", failed=failed)
    if edits:
        for edit in ReplayEdit.objects.filter(item__in=list(read)).select_related("body"):
            properties, content = read_properties(bytes(edit.properties)), read[edit.item_id]
            failed = content.properties.headers if content.failed is None else content.failed
            read[edit.item_id] = content._replace(
                properties=properties, body=bytes(edit.body.data), known="", failed=failed
            )
    return read


def make_sent(
    batch: ReplayBatch, properties: Properties, body: bytes
) -> tuple[Properties, bytes] | None:
    """What the options of the batch make of a message; None for the message as it is."""
    own = batch.conventions
    unwrapped = unwrap(properties, body, own) if batch.unwraps else None
    properties, body = unwrapped or (properties, body)
    reset = None if batch.keep_counters else reset_counters(properties, body, own)
    return unwrapped if reset is None else (reset.properties, reset.body)


def unwrap(
    properties: Properties, body: bytes, own: Sequence[Convention] = ()
) -> tuple[Properties, bytes] | None:
    """None where the body is no envelope of a known library, or cannot be read.

    Without properties in the envelope the message keeps those that it has. An expiration and a user
    id are not taken over: the one is over, and RabbitMQ refuses the other.
    """
    library = find_library(Parts(properties.headers, body, ""), own)
    opened = open_envelope(library, body) if library is not None else None
    if opened is None:
        return None
    inside, stated = opened
    if not stated:
        return properties, inside
    headers = stated.get("Headers")
    found: dict[str, Any] = {
        ours: stated[theirs]
        for theirs, ours in _TEXTS.items()
        if isinstance(stated.get(theirs), str) and stated[theirs]
    }
    for theirs, (ours, most) in _NUMBERS.items():
        value = stated.get(theirs)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most:
            found[ours] = value
    try:
        return build_properties(headers if isinstance(headers, Mapping) else {}, **found), inside
    except FieldError:
        return None


class Reset(NamedTuple):
    """The message with these edits; `library` is whose counters they are."""

    library: str
    properties: Properties
    body: bytes
    edits: tuple[Edit, ...]


def reset_counters(
    properties: Properties, body: bytes, own: Sequence[Convention] = ()
) -> Reset | None:
    """None where nothing counts, or where the properties cannot be edited.

    Headers that do not change keep every byte.
    """
    library = find_library(Parts(properties.headers, body, ""), own)
    if library is None or properties.problems:
        return None
    done = restart(library, properties.headers, body)
    if not done.edits:
        return None
    before = properties.headers
    changed = {name: value for name, value in done.headers.items() if value is not before.get(name)}
    dropped = before.keys() - done.headers.keys()
    try:
        raw = edit_properties(properties, set_headers=changed, drop_header=dropped.__contains__).raw
    except FieldError:
        return None
    return Reset(library.name, read_properties(raw), done.body, done.edits)


def prepare_replay(route: Route, properties: Properties, body: bytes, name: str) -> Publish:
    """The message by this route, under its replay id, with one replay more than it states.

    Raises FieldError.
    """
    stamp = {REPLAY_HEADER: name, REPLAYS_HEADER: count_replays(properties.headers) + 1}
    return prepare(route, properties, body, stamp)


def count_replays(headers: Headers) -> int:
    """How often a message was replayed before, according to its header."""
    stated = headers.get(REPLAYS_HEADER)
    is_number = isinstance(stated, int) and not isinstance(stated, bool)
    return max(0, stated) if is_number and isinstance(stated, int) else 0


@dataclass(frozen=True)
class Resets:
    """`attempt` of `attempts` is what the library counted, None where it states no number."""

    library: str
    attempt: int | None
    attempts: int | None


def read_resets(batch: ReplayBatch, rules: Redaction) -> Resets | None:
    """The counters that the first message without an edit loses; None where its library counts
    nothing in it.
    """
    items = batch.items.filter(edit=None, parked_message__isnull=False).order_by("position")
    columns = ("parked_message__properties", "parked_message__body__data")
    found = items.values_list(*columns).first()
    if found is None:
        return None
    properties, body = read_properties(bytes(found[0])), bytes(found[1])
    if batch.unwraps:
        properties, body = unwrap(properties, body, batch.conventions) or (properties, body)
    reset = reset_counters(properties, body, batch.conventions)
    if reset is None:
        return None
    shown = (rules.headers(properties.headers), rules.body(body))
    read = describe(*shown, own=batch.conventions)
    return Resets(reset.library, read.attempt if read else None, read.attempts if read else None)
