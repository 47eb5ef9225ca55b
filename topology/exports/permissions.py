"""The least permissions on a topology, as `rabbitmqctl set_permissions` takes them.

Declaring needs configure on the object; of a queue with a dead-letter exchange also read on the
queue and write on that exchange. Binding needs read on the source and write on the destination,
publishing write on the exchange, consuming read on the queue.
Source: https://www.rabbitmq.com/docs/access-control#authorisation
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from shlex import quote
from typing import Any

from topology.definitions import Binding, BrokerObject, Definitions, Exchange, Queue
from topology.exports.names import NotExportable
from topology.patterns.pattern import MADE_UP, Pattern

# What permissions call the default exchange.
DEFAULT_EXCHANGE = "amq.default"
# Words that a person replaces by a name.
DESTINATION = "DESTINATION"
NOTHING = "^$"


@dataclass
class Permissions:
    """Names of exchanges and queues that a user may configure, write and read."""

    configure: set[str] = field(default_factory=set)
    write: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)

    def publish(self, exchange: str) -> None:
        self.write.add(exchange or DEFAULT_EXCHANGE)

    def declare(self, objects: Iterable[BrokerObject]) -> None:
        for obj in objects:
            match obj:
                case Queue():
                    self.configure.add(obj.name)
                    if (onward := obj.dead_letter_exchange) is not None:
                        self.read.add(obj.name)
                        self.publish(onward)
                case Exchange():
                    self.configure.add(obj.name)
                    if onward := obj.arguments.text("alternate-exchange"):
                        self.read.add(obj.name)
                        self.publish(onward)
                case Binding():
                    self.read.add(obj.source)
                    self.write.add(obj.destination)

    def patterns(self) -> tuple[str, str, str]:
        """Regular expressions for configure, write and read."""
        return _expression(self.configure), _expression(self.write), _expression(self.read)


def of_publisher(pattern: Pattern, params: Any, found: Definitions) -> Permissions:
    """To delay a message: declare what the route needs and publish.

    `found` is what the vhost has; where no destination is bound yet, the name is DESTINATION.
    """
    permissions = Permissions()
    for delay, target, _ in _probes(pattern, params, found):
        route = pattern.route(params, delay, target)
        permissions.declare(route.declares)
        permissions.publish(route.exchange)
    return permissions


def of_consumer(pattern: Pattern, params: Any, found: Definitions) -> Permissions:
    """To consume, ack and reject; a consumer that publishes its retries needs both roles."""
    return Permissions(read={queue or MADE_UP for *_, queue in _probes(pattern, params, found)})


def _probes(
    pattern: Pattern, params: Any, found: Definitions
) -> Sequence[tuple[timedelta, str, str]]:
    """Raises NotExportable."""
    probes = pattern.trials(params, found)
    if not probes:
        raise NotExportable(
            "The topology has no fixed routing key, so its permissions depend on the publisher."
        )
    return probes


def of_delayboard(
    pattern: Pattern, params: Any, found: Definitions, objects: Definitions
) -> Permissions:
    """To apply, delete, record, publish and replay; `things` are the topology's and its tap's."""
    permissions = of_publisher(pattern, params, found)
    permissions.declare(objects)
    permissions.read |= {queue.name for queue in objects.queues}
    permissions.write |= {exchange.name for exchange in objects.exchanges} | {DEFAULT_EXCHANGE}
    return permissions


def as_commands(roles: Iterable[tuple[str, Permissions]], vhost: str) -> str:
    """A shell's lines; the users are named after their roles and have to exist."""
    lines = [f"VHOST={quote(vhost)}"]
    for user, permissions in roles:
        words = " ".join(quote(one) for one in permissions.patterns())
        lines.append(f'rabbitmqctl set_permissions -p "$VHOST" {user} {words}')
    lines.append("rabbitmqctl set_user_tags delayboard monitoring")
    return "\n".join(lines) + "\n"


def _expression(names: Collection[str]) -> str:
    if not names:
        return NOTHING
    escaped = sorted(_escape(name.replace(MADE_UP, DESTINATION)) for name in names)
    return f"^({'|'.join(escaped)})$"


def _escape(name: str) -> str:
    """Only what PCRE reads as more than itself, so that a person can read the rest."""
    return re.sub(r"([\\^$.|?*+()\[\]{}])", r"\\\1", name)
