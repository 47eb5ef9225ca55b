"""What an example of a rule consists of: RabbitMQ's own definitions, as `lint` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.exports.resources import (
    Raw,
    raw_binding,
    raw_definitions,
    raw_object,
)
from topology.snapshot import QueueNumbers, Report

_ARGUMENTS = {
    "ttl": "x-message-ttl",
    "dlx": "x-dead-letter-exchange",
    "key": "x-dead-letter-routing-key",
    "type": "x-queue-type",
    "expires": "x-expires",
    "overflow": "x-overflow",
    "strategy": "x-dead-letter-strategy",
    "max_length": "x-max-length",
    "limit": "x-delivery-limit",
    "priorities": "x-max-priority",
}


@dataclass(frozen=True)
class Example:
    """Objects of one vhost, and the version of the broker that holds them.

    Of queues that work, `numbers` and what they were a minute `earlier`, and `reports`.
    """

    queues: tuple[Raw, ...] = ()
    exchanges: tuple[Raw, ...] = ()
    bindings: tuple[Raw, ...] = ()
    policies: tuple[Raw, ...] = ()
    operator_policies: tuple[Raw, ...] = ()
    version: str = "4.3.6"
    numbers: Mapping[str, QueueNumbers] = field(default_factory=dict)
    earlier: Mapping[str, QueueNumbers] = field(default_factory=dict)
    reports: tuple[Report, ...] = ()

    @classmethod
    def of(cls, objects: Definitions) -> Example:
        """The same objects as an export has them."""
        raw = raw_definitions(objects)
        return cls(tuple(raw["queues"]), tuple(raw["exchanges"]), tuple(raw["bindings"]))

    def definitions(self) -> Mapping[str, Any]:
        """As an export of one vhost has it."""
        limits = [
            {"component": "operator_policy", "name": raw["name"], "value": _without_name(raw)}
            for raw in self.operator_policies
        ]
        return {
            "rabbitmq_version": self.version,
            "parameters": limits,
            "policies": list(self.policies),
            "queues": list(self.queues),
            "exchanges": list(self.exchanges),
            "bindings": list(self.bindings),
        }


class Examples(NamedTuple):
    """Of one rule: definitions in which it finds one thing, and repaired ones."""

    failing: Example
    passing: Example


def queue(name: str, **arguments: Any) -> Raw:
    """A queue, with `ttl`, `dlx`, `key` and the other short names of arguments above."""
    stated = {_ARGUMENTS[short]: value for short, value in arguments.items()}
    return raw_object(Queue(name, arguments=Arguments(stated)))


def exchange(
    name: str,
    kind: str = "direct",
    *,
    durable: bool = True,
    alternate: str = "",
    delays_as: str = "",
) -> Raw:
    """An exchange; `delays_as` is the type by which one of the delay plugin routes."""
    stated = {"alternate-exchange": alternate, "x-delayed-type": delays_as}
    arguments = Arguments({key: value for key, value in stated.items() if value})
    return raw_object(Exchange(name, kind, durable, arguments=arguments))


def binding(source: str, destination: str, key: str = "") -> Raw:
    """From an exchange to a queue."""
    return raw_binding(Binding(source, destination, key))


def policy(name: str, pattern: str, **definition: Any) -> Raw:
    """For queues; `dead_letter_exchange` stands for "dead-letter-exchange"."""
    given = {key.replace("_", "-"): value for key, value in definition.items()}
    return {
        "name": name,
        "pattern": pattern,
        "apply-to": "queues",
        "priority": 0,
        "definition": given,
    }


def _without_name(raw: Raw) -> Raw:
    return {key: value for key, value in raw.items() if key != "name"}
