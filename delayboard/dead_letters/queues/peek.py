"""Peeks at a queue and leaves its messages unchanged, as far as the broker allows.

Which peeks are safe is the table of RabbitMQ's behaviour by version and queue type: on
quorum queues with a delivery limit every peek costs each message one delivery, and on
4.0-4.2 (and 3.x with a limit) the requeue after the 20th destroys it (observed on 3.10.8, 4.0.5,
4.3.6). There each peek is counted durably before it starts, and refused in time; delivery counts
in the messages raise the number.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import inf
from typing import Any

from django.db.models import F, QuerySet
from django.db.models.functions import Greatest
from django.utils import timezone

from analytics.events import clean
from delayboard.models import PeekCount
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.amqp.frames import Delivery
from topology.broker.errors import BrokerError, NotFound, Unsupported
from topology.broker.management.client import Management
from topology.broker.management.refresh import read_queue
from topology.deaths import History, read_history
from topology.definitions import Queue
from topology.message import COUNTED_BY_QUEUE, Message
from topology.models import Broker
from topology.routing.context import delivery_limit
from topology.snapshot import Snapshot

MAXIMUM_MESSAGES = 50
MAXIMUM_BYTES = 8_000_000
HOLDING_SECONDS = 1.5
REQUEST_HEARTBEAT_SECONDS = 2
# Heartbeat of a connection that nobody serves while the database takes a message or waits for a
# lock.
STORING_HEARTBEAT_SECONDS = 30
SHORT_TTL_MS = 10_000
WITHOUT_STORE = (
    "A peek uses one delivery of each message in this queue. Only a user can request it."
)
# Longest of each of the three calls that read a queue and its policies, in seconds.
READ_SECONDS = 1.0
NOT_PEEKED = "Without the queue's delivery limit, a peek may destroy messages. Park them instead."
# Time by which a queue reported as empty may have been empty before: the broker counts every five
# seconds.
STATISTICS_LAG = timedelta(seconds=15)
# Deliveries that a peek leaves to the consumers of the messages.
RESERVE = 3


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

    `budget` is the result of `read_budget`; without one, no delivery was used.
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
    limit = find_costs(queue, snapshot.version_tuple)
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
    in_force = (queue, *read_now(broker, queue, snapshot.version_tuple))
    allowed = _check_permission(broker, in_force, snapshot)
    budget, heartbeat, counted = allowed.budget, REQUEST_HEARTBEAT_SECONDS, 0
    if budget:
        if store is None:
            raise PeekRefused(replace(allowed, allowed=False, sentences=(WITHOUT_STORE,)))
        store.check()
        heartbeat = STORING_HEARTBEAT_SECONDS
        counted = count_peek(broker, queue, budget)
    with getter(broker.address, queue.name, heartbeat=heartbeat) as source:
        messages, more, last = _take_messages(source, limit, budget)
        if has_stored := last is not None and store is not None:
            store.keep(last.message)
            source.ack([last.tag])
    numbers = snapshot.numbers.get(queue.name)
    if budget:
        most = max(map(count_deliveries, messages), default=0)
        saw_all = not more and numbers is not None and not numbers.consumers
        learn_deliveries(broker, queue, counted, most, saw_all=saw_all)
    return Peek(
        number_messages(messages),
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
    found = (permission(q, snapshot, read_budget(broker, q, snapshot)) for q in in_force)
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
        own_budget = Budget(budget.limit, count_deliveries(delivery.message)) if budget else None
        last = delivery if own_budget and not own_budget.remaining else None
        if len(messages) == limit and last is None:
            return messages, True, None
        messages.append(delivery.message)
        size += len(delivery.message.body)
        is_short = own_budget is not None and own_budget.is_short
        if is_short or size > MAXIMUM_BYTES or time.monotonic() > until:
            return messages, True, last
    return messages, False, None


def number_messages(messages: list[Message]) -> tuple[PeekedMessage, ...]:
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
    if find_costs(queue, version) is None:
        return (
            "On this RabbitMQ version, a peek moves messages of a quorum queue to the end "
            "of the queue."
        )
    return ""


@dataclass(frozen=True)
class Budget:
    """The delivery limit of a queue, and the highest delivery count known.

    `empty_at` is a time when the queue was empty, if known: earlier peeks cost none of the messages
    in it now.
    """

    limit: int
    spent: int
    empty_at: datetime | None = None

    @property
    def remaining(self) -> int:
        return max(0, self.limit - self.spent)

    @property
    def is_short(self) -> bool:
        return self.remaining <= RESERVE

    @property
    def sentence(self) -> str:
        left = (
            f"The first messages have {self.remaining} of {self.limit} deliveries left. Each peek "
            "uses one, and RabbitMQ drops a message after the last one."
        )
        if self.is_short:
            return f"{left} Delayboard reserves the last {RESERVE} for consumers."
        return f"{left} Delayboard counts other deliveries only of messages that it peeked."


def find_costs(queue: Queue, version: tuple[int, ...]) -> int | None:
    """The delivery limit that peeks are counted against; None where they cost nothing."""
    return None if version >= (4, 3) else delivery_limit(queue, version)


def read_now(broker: Broker, queue: Queue, version: tuple[int, ...]) -> tuple[Queue, ...]:
    """Returns the queue as it may be in force now; each of them has to allow the peek.

    Reads the policies from the broker on versions where a peek can cost a delivery: a snapshot
    may show a delivery limit that was lowered since. Raises NotFound, and Unsupported when they
    cannot be read.
    """
    if queue.type != "quorum" or version >= (4, 3):
        return (queue,)
    if not version:
        raise Unsupported(f"The broker does not report its version. {NOT_PEEKED}")
    try:
        with Management(broker.address, seconds=READ_SECONDS) as management:
            return read_queue(management, queue.name)
    except NotFound:
        raise
    except BrokerError as error:
        raise Unsupported(f"{error} {NOT_PEEKED}") from error


def read_budget(broker: Broker, queue: Queue, snapshot: Snapshot) -> Budget | None:
    """None where a peek costs nothing, or harms in another way."""
    limit = find_costs(queue, snapshot.version_tuple)
    if limit is None:
        return None
    found = _counts(broker, queue.name).first()
    numbers = snapshot.numbers.get(queue.name)
    empty_at = None
    if numbers is not None and numbers.messages == 0:
        empty_at = snapshot.taken_at - STATISTICS_LAG
    if found is None or (empty_at and found.last_at < empty_at):
        return Budget(limit, 0, empty_at)
    return Budget(limit, found.peeks)


def count_peek(broker: Broker, queue: Queue, before: Budget) -> int:
    """Count a peek that is about to be made; the new count. Raises Unsupported when it is short.

    Two peeks at once are both counted.
    """
    name, now = clean(queue.name), timezone.now()
    PeekCount.objects.get_or_create(broker=broker, queue=name, defaults={"last_at": now})
    counts = _counts(broker, queue.name)
    if before.empty_at is not None:
        counts.filter(last_at__lt=before.empty_at).update(peeks=0)
    if not counts.filter(peeks__lt=before.limit - RESERVE).update(
        peeks=F("peeks") + 1, last_at=now
    ):
        raise Unsupported(Budget(before.limit, counts.get().peeks).sentence)
    return counts.get().peeks


def learn_deliveries(
    broker: Broker, queue: Queue, counted: int, most: int, *, saw_all: bool
) -> None:
    """Take in the greatest number of deliveries that the messages of a peek had before it.

    It is the truth where the peek `saw_all` of them and nobody else peeked since `counted`.
    """
    counts = _counts(broker, queue.name)
    if saw_all and counts.filter(peeks=counted).update(peeks=most + 1):
        return
    counts.update(peeks=Greatest(F("peeks"), most + 1))


def count_deliveries(message: Message) -> int:
    """How often it was delivered and requeued, according to the broker."""
    found = [message.headers.get(name) for name in COUNTED_BY_QUEUE]
    return max((n for n in found if isinstance(n, int) and not isinstance(n, bool)), default=0)


def _counts(broker: Broker, queue: str) -> QuerySet[PeekCount]:
    return PeekCount.objects.filter(broker=broker, queue=clean(queue))
