"""Intercepting a queue's messages one hop before it, without losing, doubling or reordering one.

Between an exchange and its queue four objects are put: the exchange `.in`, whose alternate exchange
`.held` leads to the intercept queue, that queue, and the exchange `.out` to the real queue.
Routing puts a message into a set of queues, so while the old binding and the way through `.in`
both lead to the queue, it arrives there once. Where each message goes is then decided by one
binding, from `.in` to the queue: while it is there, messages pass on as before; while it is not,
the alternate exchange takes them. One binding comes or goes at once, so no message takes both
ways or none (rabbit_exchange.erl route1, 3.10.8 to 4.3.6; tests/real_broker/test_interception.py).

Every step may be repeated, so that whoever finds one undone begins again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.definitions import Arguments, ArgumentValue, Binding, Definitions, Exchange, Queue
from topology.delays import milliseconds
from topology.patterns.delay_levels.objects import AT_LEAST_ONCE

PREFIX = "delayboard.intercept."
# A bound that no kills reach: each counts a delivery of what was not acknowledged.
DELIVERIES = 100_000
# RabbitMQ notes about a second after the declare which folder is a quorum queue's, and one that is
# killed before starts it empty (docs/replay.md).
SETTLE_SECONDS = 2.0
# Called before each change of the broker.
Step: TypeAlias = Callable[[], None]


@dataclass(frozen=True)
class Interception:
    """The binding of a queue, and the objects that replace it meanwhile.

    Messages that nobody forwards for `limit` go on to the queue by themselves.
    """

    name: str
    binding: Binding
    queue_type: str
    limit: timedelta

    @property
    def objects(self) -> Definitions:
        """What is added, but for the bindings that are switched."""
        held = Exchange(self.held, "fanout")
        into = Exchange(self.into, "fanout", arguments=Arguments({"alternate-exchange": self.held}))
        return Definitions.of(
            [
                held,
                into,
                Exchange(self.out, "fanout"),
                Queue(self.name, arguments=Arguments(self._arguments())),
                Binding(self.held, self.name, ""),
                Binding(self.out, self.binding.destination, ""),
            ]
        )

    @property
    def into(self) -> str:
        return f"{self.name}.in"

    @property
    def held(self) -> str:
        return f"{self.name}.held"

    @property
    def out(self) -> str:
        return f"{self.name}.out"

    @property
    def entrance(self) -> Binding:
        """The binding that replaces the queue's own."""
        old = self.binding
        return Binding(
            old.source,
            self.into,
            old.routing_key,
            destination_is_queue=False,
            arguments=old.arguments,
        )

    @property
    def switch(self) -> Binding:
        """While it is there, messages pass to the queue without a stop."""
        return Binding(self.into, self.binding.destination, "")

    def _arguments(self) -> dict[str, ArgumentValue]:
        """A single active consumer keeps the order; messages that are too old go to the queue."""
        stated: dict[str, ArgumentValue] = {
            "x-queue-type": self.queue_type,
            "x-single-active-consumer": True,
            "x-message-ttl": milliseconds(self.limit),
            "x-dead-letter-exchange": self.out,
        }
        if self.queue_type == "quorum":
            stated |= {**AT_LEAST_ONCE, "x-delivery-limit": DELIVERIES}
        return stated


def begin(
    interception: Interception,
    management: Management,
    step: Step,
    settle: Step = lambda: None,
) -> None:
    """From its end on, the messages for the queue come into the intercept queue.

    `step` is called before each change, `settle` before any message can come into a queue that was
    just declared: to wait `SETTLE_SECONDS`. Raises NotFound where the queue, or every binding that
    led to it, is gone, and BrokerError: calling again goes on.
    """
    is_bound = _is_bound(interception.binding, management)
    is_entered = _is_bound(interception.entrance, management)
    if not is_bound and not is_entered:
        raise NotFound(
            f"The queue “{interception.binding.destination}” has no binding to "
            f"“{interception.binding.source}” any more. Bind the queue again."
        )
    _declare(interception, management, step)
    if not is_entered:
        settle()
    if is_bound:
        for binding in (interception.switch, interception.entrance):
            step()
            management.bind(binding)
        step()
        management.unbind(interception.binding)
    step()
    management.unbind(interception.switch)


def release(interception: Interception, management: Management, step: Step) -> None:
    """From its end on, messages pass to the queue again; the intercept queue is to be emptied.

    Raises as `begin`.
    """
    _declare(interception, management, step)
    step()
    management.bind(interception.switch)


def restore(interception: Interception, management: Management, step: Step) -> None:
    """Bind the queue as before. To be called after `release`; raises as `begin`."""
    step()
    management.bind(interception.binding)
    step()
    management.unbind(interception.entrance)


def remove(interception: Interception, management: Management, step: Step) -> None:
    """Delete what was added, once the intercept queue is empty and nothing leads there."""
    for exchange in (interception.into, interception.held, interception.out):
        step()
        management.delete_exchange(exchange)
    step()
    management.delete_queue(interception.name, only_if_empty=False)


def is_released(interception: Interception, management: Management) -> bool:
    """Whether messages pass to the queue again."""
    return _is_bound(interception.binding, management) or _is_bound(interception.switch, management)


def is_back(interception: Interception, management: Management) -> bool:
    """Whether somebody bound the queue again, so that its messages take both ways."""
    return _is_bound(interception.binding, management)


def rejects_publishes(interception: Interception, management: Management) -> bool:
    """Whether the queue refuses messages while it is full; True where it is missing."""
    try:
        queue = management.queue(interception.binding.destination)
    except NotFound:
        return True
    stated = (
        queue.get("arguments") or {},
        queue.get("effective_policy_definition") or {},
    )
    return any(
        str(one.get(name, "")).startswith("reject-publish")
        for one, name in zip(stated, ("x-overflow", "overflow"), strict=True)
    )


def _declare(interception: Interception, management: Management, step: Step) -> None:
    step()
    intercepted = interception.binding.destination
    try:
        management.queue(intercepted)
    except NotFound as error:
        raise NotFound(
            f"The queue “{intercepted}” does not exist, so its intercepted messages wait in "
            f"“{interception.name}”. Create the queue."
        ) from error
    objects = interception.objects
    for exchange in sorted(objects.exchanges, key=lambda exchange: exchange.name):
        management.declare_exchange(exchange)
    for queue in objects.queues:
        management.declare_queue(queue)
    for binding in sorted(objects.bindings, key=lambda binding: binding.identity):
        management.bind(binding)


def _is_bound(binding: Binding, management: Management) -> bool:
    return any(
        found.get("destination") == binding.destination
        and (found.get("destination_type") == "queue") is binding.destination_is_queue
        and found.get("routing_key") == binding.routing_key
        and (found.get("arguments") or {}) == dict(binding.arguments)
        for found in management.bindings_from(binding.source)
    )
