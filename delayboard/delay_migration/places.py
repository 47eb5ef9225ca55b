"""The queues in which a topology's messages wait, the longest wait first, and their due times.

What leaves one meanwhile comes into a later one, so that one pass meets each message once.

The stamp of a message and the requested delay say when it is due (reference: `rabbitmq-transport
delays migrate`, which takes NServiceBus.TimeSent). NServiceBus.Retries.Timestamp comes first: a
delayed retry keeps the TimeSent of its first send. Celery states the due time itself. A stamp that
does not fit the queue in which the message waits is wrong: the message was published again with the
stamp of an earlier publish, or by a wrong clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, TypeAlias

from analytics.recorder.copies import published, read_eta
from topology.definitions import Definitions, Queue
from topology.message import Message
from topology.models import Topology
from topology.operations.ownership import Refusal
from topology.patterns.chain.params import Params as ChainParams
from topology.patterns.chain.params import chain_of
from topology.patterns.chain.pattern import delay_chain, retry_chain
from topology.patterns.delay_levels import params as levels
from topology.patterns.delay_levels.params import KIND as LEVELS
from topology.patterns.delay_levels.pattern import split_key
from topology.patterns.hold_queues.params import KIND as HOLDS
from topology.patterns.hold_queues.pattern import hold_queues
from topology.routing.matching.index import Index
from topology.routing.matching.match import Matched, match
from topology.structure.chain import DELAYED_RETRY

DELAY_HEADER = "NServiceBus.Transport.RabbitMQ.DelayInSeconds"
# Time by which a stamp may be wrong: clocks differ, and a broker is a little late.
TOLERANCE = timedelta(seconds=5)
WRONG_STAMP = (
    "The publish time of a message does not fit the queue in which it waits, so the message cannot "
    "be moved. The source delivers it."
)
COPIES = (
    "A message with a CC or BCC header cannot be moved, because RabbitMQ would route it in the "
    "target by these keys too. The source delivers it."
)
NO_TTL = "A message without an expiration is never due, because its queue has no x-message-ttl."
# Most digits of an expiration, and the longest one that RabbitMQ takes.
LONGEST_TTL, LONGEST_EXPIRATION = 10, timedelta(milliseconds=2**32 - 1)
_SECOND = timedelta(seconds=1)
Read: TypeAlias = Callable[[Message, datetime, datetime | None], "Due"]

CHAIN_KINDS = (delay_chain.KIND, retry_chain.KIND)
REASONS = {
    "delayed_exchange": (
        "RabbitMQ cannot list the messages of the plugin. Change the publishers to the delay "
        "levels, and wait until the plugin has delivered its messages."
    ),
}
OTHERS = "Only messages of delay levels, hold queues and adopted chains can be migrated."


class Malformed(Exception):
    """Nothing in the message says when it is due, or for whom."""


class Undated(Malformed):
    """The message has no publish time, and none was recorded: only its source keeps its delay."""


class WrongStamp(Undated):
    """The publish time does not fit the queue. Where RabbitMQ is late, a right one does not fit
    either, so that only the source can deliver the message.
    """


class Unmovable(WrongStamp):
    """Delay levels cannot deliver the message as its source does."""


@dataclass(frozen=True)
class Due:
    """The destination of a message, and when it is due."""

    destination: str
    at: datetime


def due_in_level(
    params: levels.Params,
    wait: timedelta,
    level: int,
    message: Message,
    now: datetime,
    recorded_at: datetime | None = None,
) -> Due:
    """The due time of a message in a level, whose wait is given; without a publish time, the
    recorded one. Raises Malformed.
    """
    bits, destination = split_key(params, message.routing_key)
    if not bits or not destination:
        raise Malformed("The routing key is not one of these delay levels.")
    units = int(bits, 2)
    below = (units & ((1 << level) - 1)) * params.unit
    due_at = _read_due(message, units * params.unit, recorded_at)
    return Due(destination, _fit(due_at, recorded_at, now + below, now + below + wait))


def due_in_delay_queue(
    find_destination: Callable[[Message], str],
    ttl: timedelta | None,
    message: Message,
    now: datetime,
    recorded_at: datetime | None = None,
) -> Due:
    """The same of a message in a delay queue with this TTL; its own may be shorter."""
    destination = find_destination(message)
    if message.headers.keys() & {"CC", "BCC"}:
        raise Unmovable(COPIES)
    stated = [one for one in (ttl, _read_expiration(message)) if one]
    if not stated:
        raise Unmovable(NO_TTL)
    wait = min(stated)
    due_at = _read_due(message, wait, recorded_at)
    return Due(destination, _fit(due_at, recorded_at, now, now + wait))


def remaining_delay(due_at: datetime, now: datetime) -> timedelta:
    """What is left of a delay; zero for one that is over. The target rounds up to its steps."""
    return max(timedelta(0), due_at - now)


def _read_due(message: Message, requested: timedelta, recorded_at: datetime | None) -> datetime:
    if (eta := read_eta(message)) is not None:
        return eta
    at, source = published(message, recorded_at=None)
    if at is None and recorded_at is not None:
        return recorded_at
    if at is None:
        raise Undated("A message without a publish time cannot be moved. The source delivers it.")
    # AMQP timestamps are cut to whole seconds: the message may be almost a second younger.
    at += _SECOND if source == "timestamp" else timedelta(0)
    stated = message.headers.get(DELAY_HEADER)
    if not isinstance(stated, int) or isinstance(stated, bool):
        return at + requested
    try:
        return at + timedelta(seconds=max(0, stated))
    except OverflowError as error:
        raise Malformed("The delay of the message is too long.") from error


def _read_expiration(message: Message) -> timedelta | None:
    text = message.properties.expiration or ""
    is_number = text.isascii() and text.isdigit() and len(text) <= LONGEST_TTL
    return timedelta(milliseconds=int(text)) if is_number else None


def _fit(
    at: datetime, recorded_at: datetime | None, earliest: datetime, latest: datetime
) -> datetime:
    """The due time within the bounds that the queue gives it. Raises WrongStamp."""
    for one in (at, recorded_at):
        if one is not None and earliest - TOLERANCE <= one <= latest + TOLERANCE:
            return min(max(one, earliest), latest)
    raise WrongStamp(WRONG_STAMP)


class Place(NamedTuple):
    """A queue to empty, and what reads when and for whom its messages are due: from the message,
    the moment, and when it was recorded as due. None of them waits longer than `longest_wait`, in
    all queues together.
    """

    queue: str
    read: Read
    longest_wait: timedelta


def list_places(source: Topology, found: Definitions) -> list[Place]:
    """Raises Refusal for a topology whose messages cannot be moved."""
    params = source.parsed
    if source.kind == LEVELS:
        return [_level(params, level) for level in reversed(range(params.levels))]
    if source.kind == HOLDS:
        # The hold queue of probes is there for a while after they are disabled.
        found = found.without_taps().without_probes()
        index = Index.of(found)
        queues = reversed(hold_queues.members(params, found))
        return [_delay_queue(queue, index) for queue in queues]
    if source.kind in CHAIN_KINDS and not find_chain_obstacle(params):
        index = Index.of(found.without_taps().without_probes())
        return [_delay_queue(queue, index) for queue in reversed(chain_of(params).waiting)]
    raise Refusal(REASONS.get(source.kind, OTHERS))


def _level(params: levels.Params, level: int) -> Place:
    wait = params.unit * 2**level
    name = levels.level_name(params, level)
    # What has not been in the lower levels yet waits in each of them at most once.
    return Place(name, partial(due_in_level, params, wait, level), 2 * wait)


def _delay_queue(queue: Queue, index: Index) -> Place:
    """A delay queue whose destination is the one queue that its exchange leads to: by its own key
    all messages, or each by the message's key.

    Raises Refusal where its own key leads to none, or to several.
    """
    exchange, key = queue.dead_letter_exchange or "", queue.dead_letter_routing_key
    # "" leads nowhere for any message.
    fixed = "" if key is None else _find_end(queue, match(index, exchange, [key], {}), key)

    def find_destination(message: Message) -> str:
        if fixed:
            return fixed
        found = match(index, exchange, [message.routing_key], message.headers)
        try:
            return _find_end(queue, found, message.routing_key)
        except Refusal as error:
            raise Unmovable(str(error)) from error

    ttl = queue.message_ttl
    read = partial(due_in_delay_queue, find_destination, ttl)
    return Place(queue.name, read, LONGEST_EXPIRATION if ttl is None else ttl)


def _find_end(queue: Queue, found: Matched, key: str) -> str:
    """Raises Refusal where that is none, or several."""
    if len(found.queues) == 1:
        return found.queues[0]
    raise Refusal(
        f"The messages of “{queue.name}” go to {len(found.queues)} queues. Delay levels deliver to "
        f"one queue only. Bind one queue to “{queue.dead_letter_exchange}” with the key “{key}”."
    )


def find_chain_obstacle(params: ChainParams) -> str:
    """Why no message of this chain of others can be moved; "" where one can."""
    chain = chain_of(params)
    if chain.is_native:
        return (
            f"RabbitMQ delays failed messages in “{chain.name}” itself ({DELAYED_RETRY}), where no "
            "program can take them. Wait until they were delivered."
        )
    for entry in chain.entries:
        if entry.failing:
            return (
                f"Dead letters of “{entry.failing[0]}” wait in “{entry.queue}”, and x-death counts "
                "their attempts. RabbitMQ 4 counts a moved message from 1 again. Wait until they "
                "returned."
            )
    for first, second in chain.links:
        return (
            f"Messages that leave “{first}” wait again in “{second}” (x-dead-letter-exchange), so "
            "that no queue shows when they are due. Wait until they were delivered."
        )
    return ""
