"""Counts peeks where each peek uses a delivery of every message at the head of the queue.

On quorum queues of 4.0-4.2, and of 3.x with a delivery limit, the requeue after the last allowed
delivery destroys the message (observed on 3.10.8 and 4.0.5). So each peek is counted durably
before it starts, and delivery counts in the messages raise the number.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import F, QuerySet
from django.db.models.functions import Greatest
from django.utils import timezone

from analytics.events import clean
from delayboard.models import PeekCount
from topology.broker.errors import BrokerError, NotFound, Unsupported
from topology.broker.management.client import Management
from topology.broker.management.refresh import read_queue
from topology.definitions import Queue
from topology.message import COUNTED_BY_QUEUE, Message
from topology.models import Broker
from topology.routing.consumer import delivery_limit
from topology.snapshot import Snapshot

# Each of the three calls that read a queue and its policies takes at most this long.
READ_SECONDS = 1.0
NOT_PEEKED = "Without the queue's delivery limit, a peek may destroy messages. Park them instead."
# The broker counts every five seconds: a queue reported as empty was empty some time before.
STATISTICS_LAG = timedelta(seconds=15)
# Deliveries that are left to the consumers of the messages.
RESERVE = 3


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


def costs_of(queue: Queue, version: tuple[int, ...]) -> int | None:
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


def budget(broker: Broker, queue: Queue, snapshot: Snapshot) -> Budget | None:
    """None where a peek costs nothing, or harms in another way."""
    limit = costs_of(queue, snapshot.version_tuple)
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


def spend(broker: Broker, queue: Queue, before: Budget) -> int:
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


def learn(broker: Broker, queue: Queue, counted: int, most: int, *, saw_all: bool) -> None:
    """Take in the greatest number of deliveries that the messages of a peek had before it.

    It is the truth where the peek `saw_all` of them and nobody else peeked since `counted`.
    """
    counts = _counts(broker, queue.name)
    if saw_all and counts.filter(peeks=counted).update(peeks=most + 1):
        return
    counts.update(peeks=Greatest(F("peeks"), most + 1))


def deliveries(message: Message) -> int:
    """How often it was delivered and requeued, according to the broker."""
    found = [message.headers.get(name) for name in COUNTED_BY_QUEUE]
    return max((n for n in found if isinstance(n, int) and not isinstance(n, bool)), default=0)


def _counts(broker: Broker, queue: str) -> QuerySet[PeekCount]:
    return PeekCount.objects.filter(broker=broker, queue=clean(queue))
