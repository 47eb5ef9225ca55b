"""PURE: when a message that waits in a delay queue is due, and for whom.

Its stamp and the requested delay say when (reference: `rabbitmq-transport delays migrate`, which
takes NServiceBus.TimeSent). NServiceBus.Retries.Timestamp comes first: a delayed retry keeps the
TimeSent of its first send. Celery states the due time itself. A stamp that does not fit the queue
in which the message waits is wrong: the message was published again with the stamp of an earlier
publish, or by a wrong clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from analytics.recorder.copies import published, read_eta
from topology.message import Message
from topology.patterns.delay_levels import params as levels
from topology.patterns.delay_levels.pattern import split_key

DELAY_HEADER = "NServiceBus.Transport.RabbitMQ.DelayInSeconds"
# Time by which a stamp may be wrong: clocks differ, and a broker is a little late.
TOLERANCE = timedelta(seconds=5)
NO_STAMP = "A message without a publish time cannot be moved. The source delivers it."
WRONG_STAMP = (
    "The publish time of a message does not fit the queue in which it waits, so the message cannot "
    "be moved. The source delivers it."
)
COPIES = (
    "A message with a CC or BCC header cannot be moved, because RabbitMQ would route it in the "
    "target by these keys too. The source delivers it."
)
NO_TTL = "A message without an expiration is never due, because its queue has no x-message-ttl."
# RabbitMQ takes 2^32 - 1 ms at most.
LONGEST_TTL, LONGEST_EXPIRATION = 10, timedelta(milliseconds=2**32 - 1)
_SECOND = timedelta(seconds=1)


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
    """For whom a message is, and when it is due."""

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
    """Of a message in a level, whose wait is given; of one without a publish time, when it was
    recorded as due. Raises Malformed.
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
        raise Undated(NO_STAMP)
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
