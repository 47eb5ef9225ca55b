"""Peeks at a queue and leaves its messages unchanged, as far as the broker allows.

Which peeks are safe is the table of RabbitMQ's behaviour by version and queue type: on
quorum queues with a delivery limit every peek costs each message one delivery, and on
4.0-4.2 (and 3.x with a limit) the 21st destroys it (observed on 3.10.8, 4.0.5, 4.3.6): there
peeks are counted and refused in time (`peek_limit.budget`).
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from delayboard.dead_letters.queues import peek_limit
from delayboard.dead_letters.queues.peek_limit import Budget, costs_of, deliveries
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.amqp.frames import Delivery
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
# Nobody serves the connection while the database takes a message, or waits for a lock.
STORING_HEARTBEAT_SECONDS = 30
SHORT_TTL_MS = 10_000
WITHOUT_STORE = (
    "A peek uses one delivery of each message in this queue. Only a user can request it."
)


@dataclass(frozen=True)
class Store:
    """Where a message goes that cannot be put back.

    `check` raises when nothing can be stored now. `keep` stores a message durably; it is
    acknowledged afterwards.
    """

    check: Callable[[], object]
    keep: Callable[[Message], object]


@dataclass(frozen=True)
class Permission:
    """Whether a queue may be peeked at, and the sentences that a person should read first.

    `budget` is set where each peek costs a delivery. `parks`: parking shows what no peek may show.
    """

    allowed: bool
    sentences: tuple[str, ...]
    budget: Budget | None = None
    parks: bool = False


@dataclass(frozen=True)
class PeekedMessage:
    """A message as it was seen; `handle` is what a form sends to choose it."""

    message: Message
    content_id: str
    handle: str
    history: History


@dataclass(frozen=True)
class Peek:
    """The messages at the head of a queue, in order. `more`: the queue contains others.

    `permission` is for the next peek. `has_stored`: the last message of the list was parked,
    because a requeue would have destroyed it. `removed`: so many behind the first had expired, and
    RabbitMQ removed them while the peek held it.
    """

    peeked_messages: tuple[PeekedMessage, ...]
    more: bool
    permission: Permission
    has_stored: bool = False
    removed: int = 0


class PeekRefused(Unsupported):
    """The message says why; `permission` is the current one."""

    def __init__(self, permission: Permission) -> None:
        super().__init__(" ".join(permission.sentences))
        self.permission = permission


def permission(queue: Queue, snapshot: Snapshot, budget: Budget | None = None) -> Permission:
    """Pure: whether a peek into this queue is allowed on this broker.

    `budget` is the result of `peek_limit.budget`; without one, no delivery was used.
    """
    if queue.type == "stream":
        return Permission(
            False,
            ("Delayboard does not peek at streams, because streams contain no dead letters.",),
        )
    if queue.type not in ("classic", "quorum"):
        sentence = f"Delayboard cannot peek at queues of type “{queue.type}”."
        return Permission(False, (sentence,))
    notes = _list_notes(queue, snapshot)
    if queue.type == "classic":
        return Permission(True, notes)
    if refusal := _explain_quorum_refusal(queue, snapshot.version_tuple):
        return Permission(False, (refusal,), parks=True)
    limit = costs_of(queue, snapshot.version_tuple)
    if limit is None:
        return Permission(True, (*notes, *_list_quorum_notes(queue)))
    budget = budget or Budget(limit, 0)
    if budget.is_short:
        return Permission(False, (budget.sentence,), budget, parks=True)
    return Permission(True, (*notes, budget.sentence), budget, parks=True)


def is_free(queue: Queue, snapshot: Snapshot) -> bool:
    """Whether a peek costs no delivery, withholds nothing, delays no expiry and keeps the order."""
    numbers, found = snapshot.numbers.get(queue.name), permission(queue, snapshot)
    is_unused = numbers is not None and numbers.consumers == 0
    is_reordered = queue.type == "quorum" and _is_unlimited(queue)
    is_delaying = queue.message_ttl_ms is not None and queue.deletes_after is None
    has_cost = found.budget is not None or is_delaying or is_reordered
    return found.allowed and is_unused and not has_cost


def peek_queue(
    broker: Broker,
    queue: Queue,
    snapshot: Snapshot,
    limit: int = MAXIMUM_MESSAGES,
    *,
    store: Store | None = None,
) -> Peek:
    """Get from the head, put everything back by nack. Raises BrokerError, PeekRefused.

    Where a peek costs deliveries, the limit is read from the broker immediately before it.
    `store` takes a message that has no delivery left: putting it back would destroy it. Without
    one such a peek is refused; with one that takes nothing now, what `check` raises comes first.
    """
    _check_permission(broker, (queue,), snapshot)
    in_force = (queue, *peek_limit.read_now(broker, queue, snapshot.version_tuple))
    allowed = _check_permission(broker, in_force, snapshot)
    budget, heartbeat, counted = allowed.budget, REQUEST_HEARTBEAT_SECONDS, 0
    if budget:
        if store is None:
            raise PeekRefused(replace(allowed, allowed=False, sentences=(WITHOUT_STORE,)))
        store.check()
        heartbeat = STORING_HEARTBEAT_SECONDS
        counted = peek_limit.spend(broker, queue, budget)
    with getter(broker.address, queue.name, heartbeat=heartbeat) as source:
        messages, more, last = _take_messages(source, limit, budget)
        if has_stored := last is not None and store is not None:
            store.keep(last.message)
            source.ack([last.tag])
    numbers = snapshot.numbers.get(queue.name)
    if budget:
        most = max(map(deliveries, messages), default=0)
        saw_all = not more and numbers is not None and not numbers.consumers
        peek_limit.learn(broker, queue, counted, most, saw_all=saw_all)
    return Peek(
        number(messages),
        more,
        _choose_strictest(broker, in_force, snapshot),
        has_stored,
        # Consumers take messages too.
        source.removed if numbers and numbers.consumers == 0 else 0,
    )


def _check_permission(
    broker: Broker, in_force: tuple[Queue, ...], snapshot: Snapshot
) -> Permission:
    """The strictest permission. Raises PeekRefused where it allows nothing."""
    found = _choose_strictest(broker, in_force, snapshot)
    if not found.allowed:
        raise PeekRefused(found)
    return found


def _choose_strictest(
    broker: Broker, in_force: tuple[Queue, ...], snapshot: Snapshot
) -> Permission:
    """The permission that allows least, of what may be in force."""
    found = (permission(q, snapshot, peek_limit.budget(broker, q, snapshot)) for q in in_force)
    return min(found, key=lambda one: (one.allowed, one.budget.limit if one.budget else inf))


def _take_messages(
    source: Consumer, limit: int, budget: Budget | None
) -> tuple[list[Message], bool, Delivery | None]:
    """What one peek takes, whether there is more behind it, and a message with no delivery left.

    It ends at the first message that has few deliveries left, so that it costs no other one.
    """
    messages: list[Message] = []
    size = 0
    until = time.monotonic() + HOLDING_SECONDS
    while (delivery := source.get()) is not None:
        own_budget = Budget(budget.limit, deliveries(delivery.message)) if budget else None
        last = delivery if own_budget and not own_budget.remaining else None
        if len(messages) == limit and last is None:
            return messages, True, None
        messages.append(delivery.message)
        size += len(delivery.message.body)
        is_short = own_budget is not None and own_budget.is_short
        if is_short or size > MAXIMUM_BYTES or time.monotonic() > until:
            return messages, True, last
    return messages, False, None


def number(messages: list[Message]) -> tuple[PeekedMessage, ...]:
    """Pure: number equal messages by their order."""
    seen: Counter[str] = Counter()
    peeked_messages = []
    for message in messages:
        content = message.content_id
        handle = handle_of(message, content, seen)
        peeked_messages.append(
            PeekedMessage(message, content, handle, read_history(message.headers))
        )
    return tuple(peeked_messages)


def handle_of(message: Message, content_id: str, seen: Counter[str]) -> str:
    """The handle of the next message, counted into those that were seen before it.

    It is content id, history (8 hex digits) and occurrence: which of those that have both it is,
    from 1. When the head moves, one that died otherwise is not taken for it.
    """
    equal = f"{content_id}.{history_id(message.headers)}"
    seen[equal] += 1
    return f"{equal}.{seen[equal]}"


def history_id(headers: Mapping[str, Any]) -> str:
    """8 hex digits of the content of x-death; pure."""
    deaths = repr(headers.get("x-death"))
    return hashlib.sha256(deaths.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _list_notes(queue: Queue, snapshot: Snapshot) -> tuple[str, ...]:
    numbers = snapshot.numbers.get(queue.name)
    ttl = queue.message_ttl_ms
    notes = ["A peek sets the redelivered flag of every message that it shows."]
    if numbers and numbers.consumers:
        notes.append("The queue has consumers. A peek withholds messages from them for a moment.")
    if ttl is None and queue.dead_letter_exchange is not None:
        notes.append("Messages whose own TTL has ended leave the queue during a peek.")
    if ttl is not None and ttl < SHORT_TTL_MS:
        notes.append("Messages in this queue expire soon. A peek can delay their expiry.")
    return tuple(notes)


def _list_quorum_notes(queue: Queue) -> tuple[str, ...]:
    """What a peek does on 4.3, where it costs nothing."""
    notes = ["RabbitMQ 4.3 does not count a peek as a failed delivery."]
    if _is_unlimited(queue):
        notes.append("Without a delivery limit, a peek moves the messages to the end of the queue.")
    return tuple(notes)


def _is_unlimited(queue: Queue) -> bool:
    return (queue.arguments.number("x-delivery-limit") or 0) < 0


def _explain_quorum_refusal(queue: Queue, version: tuple[int, ...]) -> str:
    """Why no peek at a quorum queue's messages is harmless; "" when one is, or can be counted."""
    if version >= (4, 3):
        kind = queue.arguments.text("x-delayed-retry-type") or "disabled"
        if kind in ("all", "returned"):
            return "Delayed retry would hide every peeked message, so Delayboard does not peek."
        return ""
    if costs_of(queue, version) is None:
        return (
            "On this RabbitMQ version, a peek moves messages of a quorum queue to the end "
            "of the queue."
        )
    return ""
