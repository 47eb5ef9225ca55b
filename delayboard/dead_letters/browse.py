"""Looking into a queue without changing what is in it, as far as the broker allows.

Which looks are safe is the table of RabbitMQ's behaviour by version and queue type: on
quorum queues with a delivery limit every look costs each message one delivery, and on
4.0-4.2 (and 3.x with a limit) the 21st destroys it (observed on 3.10.8, 4.0.5, 4.3.6).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from topology.broker.consumer import getter
from topology.broker.errors import Unsupported
from topology.deaths import History, read_history
from topology.definitions import Queue
from topology.message import Message
from topology.models import Broker
from topology.snapshot import Snapshot

MAXIMUM_MESSAGES = 50
MAXIMUM_BYTES = 8_000_000
HOLDING_SECONDS = 1.5
REQUEST_HEARTBEAT_SECONDS = 2
SHORT_TTL_MS = 10_000


@dataclass(frozen=True)
class Permission:
    """Whether a queue may be looked into, and the sentences that a person should read first."""

    allowed: bool
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Letter:
    """A message as it was seen; `occurrence` numbers messages of equal content from 1."""

    message: Message
    content_id: str
    occurrence: int
    history: History

    @property
    def handle(self) -> str:
        """What a form sends to choose it."""
        return f"{self.content_id}.{self.occurrence}"


@dataclass(frozen=True)
class Look:
    """The messages at the head of a queue, in order. `more` says that there are others."""

    letters: tuple[Letter, ...]
    more: bool
    permission: Permission


def permission(queue: Queue, snapshot: Snapshot) -> Permission:
    """Pure: may this queue be looked into on this broker?"""
    numbers = snapshot.numbers.get(queue.name)
    notes = ["Looking sets the redelivered mark of every message that is shown."]
    if numbers and numbers.consumers:
        notes.append("It has consumers: a message on show is kept from them for a moment.")
    if queue.type == "stream":
        return Permission(False, ("A stream has no dead letters and is not read here.",))
    if queue.type not in ("classic", "quorum"):
        sentence = f"What a look does to a queue of the type “{queue.type}” is not known."
        return Permission(False, (sentence,))
    ttl = queue.message_ttl_ms
    if ttl is not None and ttl < SHORT_TTL_MS:
        notes.append("Its messages expire soon; one that is due while on show leaves late.")
    if queue.type == "quorum":
        refusal = _quorum_refusal(queue, snapshot.version_tuple)
        if refusal:
            return Permission(False, (refusal,))
        notes.append("A look is no failed delivery here: RabbitMQ 4.3 counts it apart.")
        if _is_unlimited(queue):
            notes.append("Without a delivery limit the messages go to the end of the queue.")
    return Permission(True, tuple(notes))


def look(broker: Broker, queue: Queue, snapshot: Snapshot, limit: int = MAXIMUM_MESSAGES) -> Look:
    """Get from the head, put everything back by nack. Raises BrokerError, Unsupported."""
    allowed = permission(queue, snapshot)
    if not allowed.allowed:
        raise Unsupported(" ".join(allowed.sentences))
    messages: list[Message] = []
    more = False
    size = 0
    until = time.monotonic() + HOLDING_SECONDS
    with getter(broker.address, queue.name, heartbeat=REQUEST_HEARTBEAT_SECONDS) as source:
        while True:
            delivery = source.get()
            if delivery is None:
                break
            if len(messages) == limit:
                more = True
                break
            messages.append(delivery.message)
            size += len(delivery.message.body)
            if size > MAXIMUM_BYTES or time.monotonic() > until:
                more = True
                break
    return Look(number(messages), more, allowed)


def number(messages: list[Message]) -> tuple[Letter, ...]:
    """Pure: tell messages of equal content apart by their order."""
    seen: dict[str, int] = {}
    letters = []
    for message in messages:
        content = message.content_id
        seen[content] = seen.get(content, 0) + 1
        history = read_history(message.headers)
        letters.append(Letter(message, content, seen[content], history))
    return tuple(letters)


def _is_unlimited(queue: Queue) -> bool:
    return (queue.arguments.number("x-delivery-limit") or 0) < 0


def _quorum_refusal(queue: Queue, version: tuple[int, ...]) -> str:
    """Why a look would harm a quorum queue's messages; "" when it would not."""
    limit = queue.arguments.number("x-delivery-limit")
    if version >= (4, 3):
        kind = queue.arguments.text("x-delayed-retry-type") or "disabled"
        if kind in ("all", "returned"):
            return "Its delayed retry would take every message that is looked at out of sight."
        return ""
    if _is_unlimited(queue) or (version < (4, 0) and limit is None):
        return (
            "On a quorum queue of this version a look puts the messages at the end of the "
            "queue, out of their order."
        )
    return (
        "On this version every look costs each message one of its "
        f"{20 if limit is None else limit} deliveries, and the last one destroys it."
    )
