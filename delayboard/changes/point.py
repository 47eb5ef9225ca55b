"""PURE: the one path by which a topology's delayed messages come to a destination's queue.

A change is exact only where each message comes from one exchange to one queue, or waits in a
queue that can be read whole, and where publishing it again does not change what its consumer
decides by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topology.content.text import count_text
from topology.definitions import Binding, Definitions
from topology.patterns.pattern import Pattern
from topology.routing.matching.index import Index
from topology.routing.matching.match import FORESEEABLE, steps

ONLY_CANCEL = (
    "The messages of a retry can only be cancelled. For another time, Delayboard would publish the "
    "message again. From RabbitMQ 4.0 on, its x-death count then starts at zero, and the consumer "
    "would retry it too often."
)
# Limits of a queue that is read whole: its messages are held meanwhile.
MOST_READ = 20_000
MOST_BYTES = 256_000_000
_LENGTH_LIMITS = frozenset({"x-max-length", "x-max-length-bytes", "max-length", "max-length-bytes"})


class Unchangeable(Exception):
    """The messages of this destination cannot be changed; the sentence says why."""


class NoQueue(Unchangeable):
    """Just now, no queue receives the messages."""


@dataclass(frozen=True)
class Point:
    """The bindings from one exchange to one queue, which are replaced, the type of the queue that
    intercepts, and whether the intercepted queue rejects messages while it is full.

    kombu binds a queue by `orders` and `#.orders`: what comes without a delay matches both.
    """

    bindings: tuple[Binding, ...]
    queue_type: str
    rejects: bool = False

    @property
    def queue(self) -> str:
        return self.bindings[0].destination


def exit_of(pattern: Pattern, params: Any, destination: str) -> tuple[str, str]:
    """The exchange and key with which messages for a destination leave the delays.

    The default exchange has no binding to replace: its messages are changed in their delay queue
    (read_queue.py). Raises Unchangeable.
    """
    if problem := pattern.change_obstacle(params):
        raise Unchangeable(problem)
    return pattern.exit_of(params, destination)


def is_only_cancelled(pattern: Pattern) -> bool:
    """Whether its messages can get no other time: a new copy of one would be counted from zero."""
    return pattern.ATTEMPTS_COUNTED_BY == "x-death"


def find_point(found: Definitions, exchange: str, key: str) -> Point:
    """The path that every message with this key takes. Raises Unchangeable."""
    without = found.without_taps()
    reached: list[tuple[str, str]] = []
    for step in steps(Index.of(without), exchange, (key,), {}, ()):
        if step.exchange.type not in FORESEEABLE or step.exchange.type == "headers":
            raise Unchangeable(
                f"The exchange “{step.exchange.name}” does not route by the routing key alone. "
                "Bind the destination to an exchange that does."
            )
        reached += [(step.exchange.name, queue) for queue in step.queues]
    queues = sorted({queue for _, queue in reached})
    if not queues:
        raise NoQueue("No queue receives the messages of this destination.")
    if len(queues) > 1:
        names = ", ".join(f"“{queue}”" for queue in queues[:5])
        raise Unchangeable(f"Several queues receive these messages: {names}.")
    (queue,) = queues
    sources = sorted({source for source, _ in reached})
    if len(sources) > 1:
        names = ", ".join(f"“{source}”" for source in sources[:5])
        raise Unchangeable(
            f"The queue “{queue}” receives these messages from several exchanges: {names}. Bind it "
            "to one of them only."
        )
    there = found.queue(queue)
    is_quorum = there is not None and there.type == "quorum"
    levels = found.dying_into(exchange)
    is_quorum = is_quorum or any(level.type == "quorum" for level in levels)
    overflow = (there and there.arguments.text("x-overflow")) or ""
    kind = "quorum" if is_quorum else "classic"
    bindings = tuple(without.leads(sources[0], queue))
    return Point(bindings, kind, overflow.startswith("reject-publish"))


def unreadable(queue: Mapping[str, Any], destination: str) -> str:
    """Why a delay queue cannot be read and its messages put back in place; "" where it can.

    `queue` is the answer of the management API. Without a `destination` it may lead anywhere: then
    nothing is published in place of a message.
    """
    name, arguments = queue.get("name"), queue.get("arguments") or {}
    limits = {*arguments, *(queue.get("effective_policy_definition") or {})}
    leads = arguments.get("x-dead-letter-exchange"), arguments.get("x-dead-letter-routing-key")
    kind = queue.get("type") or arguments.get("x-queue-type") or "classic"
    if kind != "classic":
        return (
            f"“{name}” is a {kind} queue. Only classic queues take messages back in their places "
            "without counting a failed delivery. Use classic delay queues, or delay levels."
        )
    if destination and leads != ("", destination):
        stated = ", ".join(f"“{one}”" if one else "none" for one in leads)
        return (
            f"“{name}” does not dead-letter to the queue “{destination}” alone: its dead-letter "
            f"exchange and routing key are {stated}. Wait until the message is delivered."
        )
    if limits & _LENGTH_LIMITS:
        return (
            f"“{name}” has a length limit, so RabbitMQ could drop messages that are put back. "
            "Remove the limit."
        )
    # The number of consumers is seconds old, their list is not.
    if queue.get("consumer_details", queue.get("consumers")):
        return f"“{name}” has consumers. Stop the consumers."
    if arguments.get("x-single-active-consumer"):
        return (
            f"“{name}” has x-single-active-consumer, so Delayboard cannot read it. Wait until the "
            "message is delivered."
        )
    if (queue.get("messages") or 0) > MOST_READ or (queue.get("message_bytes") or 0) > MOST_BYTES:
        return (
            f"“{name}” has more than {count_text(MOST_READ)} messages or "
            f"{MOST_BYTES // 1_000_000} MB. Wait until it has fewer, or use delay levels."
        )
    return ""
