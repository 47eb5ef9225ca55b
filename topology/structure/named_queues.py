"""Delay queues that come and go: a client declares one for each delay, and RabbitMQ deletes it.

Their names state their TTLs, as those of Symfony Messenger and Laravel do. So one that was declared
after its chain was read is known by its name: it is like the others, with another TTL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from topology.definitions import MAXIMUM_TTL_MS, Arguments, BrokerObject, Definitions, Queue
from topology.structure.chain import Chain, bindings_into


@dataclass(frozen=True)
class Template:
    """A queue of a chain, and what the names of others like it look like."""

    queue: Queue
    pattern: re.Pattern[str]

    def make(self, name: str) -> Queue | None:
        """The queue of this name; None for a name of something else."""
        match = self.pattern.fullmatch(name)
        if match is None or int(match["ttl"]) > MAXIMUM_TTL_MS:
            return None
        arguments = {**self.queue.arguments, "x-message-ttl": int(match["ttl"])}
        return replace(self.queue, name=name, arguments=Arguments(arguments))

    def fits(self, queue: Queue) -> bool:
        """Whether a queue of the broker is one of this kind; it expires after its own time."""
        like = self.make(queue.name)
        return like is not None and _without_expiry(like) == _without_expiry(queue)


def _without_expiry(queue: Queue) -> Queue:
    arguments = {name: value for name, value in queue.arguments.items() if name != "x-expires"}
    return replace(queue, arguments=Arguments(arguments)).with_type()


def find_templates(chain: Chain) -> Sequence[Template]:
    """Templates of the queues that RabbitMQ deletes when they are unused, one for each kind of
    name.
    """
    found = {}
    for queue in chain.waiting:
        parts = re.split(rf"(?<!\d){queue.message_ttl_ms}(?!\d)", queue.name)
        if "x-expires" in queue.arguments and len(parts) == 2:
            found[tuple(parts)] = queue
    return [
        Template(
            queue, re.compile(rf"{re.escape(before)}(?P<ttl>[0-9]{{1,12}}){re.escape(behind)}")
        )
        for (before, behind), queue in found.items()
    ]


def extend(chain: Chain, template: Template, queue: Queue) -> Definitions:
    """The definitions of the chain with one more queue of this kind."""
    return chain.definitions | Definitions.of(_make_like(chain, template.queue, queue))


def _make_like(chain: Chain, known: Queue, queue: Queue) -> Iterator[BrokerObject]:
    """Make objects like those of a queue whose name is its routing key too."""
    yield queue
    for one in bindings_into(chain.definitions, known.name):
        key = queue.name if one.routing_key == known.name else one.routing_key
        yield replace(one, destination=queue.name, routing_key=key)
