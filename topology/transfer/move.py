"""The one loop that moves messages: get, decide, publish confirmed, ack.

The journal's methods commit before they return. In this order no crash loses a message: the
source is acknowledged only after the broker has confirmed the copy, and what the journal
says then tells whether a message that is still in the source was published before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from topology.broker.consumer import Getter
from topology.broker.errors import BrokerError, OutcomeUnknown, Unreachable
from topology.broker.publisher import Publisher
from topology.message import Message, Publish


@dataclass(frozen=True)
class Step:
    """Publish this, then take the message from the source; `key` is the journal's."""

    key: int
    publish: Publish


@dataclass(frozen=True)
class Moved:
    """How many messages were looked at, how many taken, and whether the queue had no more."""

    seen: int
    taken: int
    is_exhausted: bool


class Journal(Protocol):
    """Decides, and remembers durably how far each message got."""

    def decide(self, message: Message) -> Step | None:
        """None leaves the message where it is."""

    def is_complete(self) -> bool:
        """Nothing is wanted any more."""

    def publishing(self, key: int) -> None: ...

    def check(self, publish: Publish) -> None:
        """Asked after the confirm: raises Returned when no queue but a tap can have taken it."""

    def confirmed(self, key: int) -> None: ...

    def done(self, key: int) -> None: ...

    def refused(self, key: int, error: BrokerError) -> None:
        """The broker did not take it; it stays in the source."""


def move(
    getter: Getter,
    publisher: Publisher,
    journal: Journal,
    *,
    limit: int,
    holding: timedelta,
    pulse: Callable[[], None],
) -> Moved:
    """Look at up to `limit` messages, holding them for at most `holding`.

    Everything that is not taken goes back when the getter's block ends. Raises BrokerError
    when a connection breaks, and whatever `pulse` raises.
    """
    until = datetime.now(UTC) + holding
    seen = taken = 0
    while seen < limit and not journal.is_complete() and datetime.now(UTC) < until:
        delivery = getter.get()
        if delivery is None:
            return Moved(seen, taken, is_exhausted=True)
        seen += 1
        step = journal.decide(delivery.message)
        if step is None:
            continue
        if _publish(publisher, journal, step):
            getter.ack(delivery)
            journal.done(step.key)
            taken += 1
        pulse()
    return Moved(seen, taken, is_exhausted=False)


def _publish(publisher: Publisher, journal: Journal, step: Step) -> bool:
    """Whether the broker has the copy. A broken connection is not a refusal: it is raised."""
    journal.publishing(step.key)
    try:
        publisher.publish(step.publish)
        journal.check(step.publish)
    except (OutcomeUnknown, Unreachable):
        raise
    except BrokerError as error:
        journal.refused(step.key, error)
        return False
    journal.confirmed(step.key)
    return True
