"""What is sent of a message, or of its edit, and what is stated of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from analytics import facts
from delayboard.dead_letters.replay.reset_counters import reset_counters
from delayboard.dead_letters.replay.unwrap import unwrap
from delayboard.models import ParkedMessage
from delayboard.models.replay import ReplayBatch, ReplayEdit
from topology.broker.properties.read import read_properties
from topology.database.select_keys import match_keys
from topology.message import Headers, Message, Properties, Publish, content_id, kept_by_streams

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
