"""Intercepting a queue's messages one hop before it, without losing, doubling or reordering one.

All bindings from one exchange to the queue are one path, since a message that matches several of
them comes once. A `Detour` leads from the queue to the intercept queue, and the exchange `.out` to
the real queue. While an old binding and the way through the detour both lead to the queue, a
message arrives there once; where each goes is then decided by the one binding of the detour. The
intercept queue gets all messages, or those with certain headers or routing keys: the others go on
to the queue by `.out`.

Every step may be repeated, so that whoever finds one undone begins again.
`Management.before_change` is called before each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.definitions import Arguments, ArgumentValue, Binding, Definitions, Exchange, Queue
from topology.delays import milliseconds
from topology.patterns.delay_levels.params import AT_LEAST_ONCE

# Delivery limit that no kills reach: each counts a delivery of what was not acknowledged.
DELIVERIES = 100_000
# Seconds from the declare of the queue to its first message: RabbitMQ notes about a second after
# the declare which folder is a quorum queue's, and one that is killed before starts it empty
# (docs/replay.md).
SETTLE_SECONDS = 2.0


@dataclass(frozen=True)
class Interception:
    """The bindings from an exchange to a queue, and the objects that replace them meanwhile.

    Messages that nobody forwards for `limit` go on to the queue by themselves.
    """

    name: str
    bindings: tuple[Binding, ...]
    queue_type: str
    limit: timedelta

    @property
    def objects(self) -> Definitions:
        """What is added, but for the bindings that are switched."""
        return self.detour.objects | Definitions.of(
            [
                Exchange(self.out, "fanout"),
                Queue(self.name, arguments=Arguments(self._arguments())),
                self.forwarding,
            ]
        )

    @property
    def source(self) -> str:
        return self.bindings[0].source

    @property
    def queue(self) -> str:
        """The intercepted one."""
        return self.bindings[0].destination

    @property
    def forwarding(self) -> Binding:
        """What leads the messages that are not intercepted, and those that are forwarded."""
        return Binding(self.out, self.queue, "")

    @property
    def detour(self) -> Detour:
        return Detour(self.name, self.queue, self.name, self.out)

    @property
    def entrances(self) -> tuple[Binding, ...]:
        """What replaces the bindings."""
        return tuple(self.detour.entrance(binding) for binding in self.bindings)

    def taking_headers(self, headers: Mapping[str, str]) -> Binding:
        """What leads the messages with all of these headers into the intercept queue."""
        arguments = Arguments({"x-match": "all", **headers})
        return Binding(self.detour.alternate, self.name, "", arguments=arguments)

    def taking_key(self, key: str) -> Binding:
        """What leads the messages with this routing key into the intercept queue."""
        return Binding(self.detour.by_key, self.name, key)

    @property
    def taking_all(self) -> Binding:
        return self.taking_headers({})

    @property
    def out(self) -> str:
        return f"{self.name}.out"

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


def explain_open(queue: str) -> str:
    """Why nothing may change what leads to an intercepted queue."""
    return (
        f"Delayboard intercepts the messages for “{queue}”. Wait until the requested changes are "
        "done, or undo them."
    )


class NoBinding(NotFound):
    """Nothing leads messages to the queue, not even by the interception."""


def begin(
    interception: Interception,
    management: Management,
    taken: Iterable[Binding] = (),
    settle: Callable[[], None] = lambda: None,
) -> None:
    """Lead the messages that `taken` selects into the intercept queue, from the end of this call
    on, and those that it got before.

    `settle` is called before any message can come into a queue that was just declared: to wait
    `SETTLE_SECONDS`. Raises NotFound where the queue is gone, NoBinding where every binding that
    led to it is, and BrokerError: calling again goes on.
    """
    there = management.bindings_from(interception.source)
    bound = [one for one in interception.bindings if _is_among(one, there)]
    entered = [one for one in interception.entrances if _is_among(one, there)]
    if not bound and not entered:
        raise NoBinding(
            f"The queue “{interception.queue}” has no binding to “{interception.source}” any more. "
            "Bind the queue again."
        )
    detour = interception.detour
    _declare(interception, management)
    lead(interception, taken, management)
    if not entered:
        settle()
    if len(entered) < len(interception.entrances):
        # Each new one before its old one is gone: until the switch is, all lead to the queue.
        for binding in interception.bindings:
            detour.enter(binding, management)
    else:
        # Bound again by others: no message may come to the queue alone meanwhile.
        for binding in bound:
            management.unbind(binding)
    management.unbind(detour.switch)


def lead(interception: Interception, taken: Iterable[Binding], management: Management) -> None:
    """Lead messages into the intercept queue by these bindings.

    Those that are there take no request: whoever is killed again and again comes to an end all the
    same.
    """
    if wanted := list(taken):
        detour = interception.detour
        there = management.bindings_from(detour.alternate) + management.bindings_from(detour.by_key)
        management.declare([one for one in wanted if not _is_among(one, there)])


def release(interception: Interception, management: Management) -> None:
    """Lead messages to the queue again, from the end of this call on; the intercept queue is to be
    emptied.

    Raises as `begin`.
    """
    _declare(interception, management)
    management.bind(interception.detour.switch)


def restore(interception: Interception, management: Management) -> None:
    """Bind the queue as before. To be called after `release`; raises as `begin`."""
    for binding in interception.bindings:
        management.bind(binding)
    for entrance in interception.entrances:
        management.unbind(entrance)


def remove(interception: Interception, management: Management) -> None:
    """Delete what was added, once the intercept queue is empty and nothing leads there."""
    interception.detour.remove(management)
    management.delete_exchange(interception.out)
    management.delete_queue(interception.name, only_if_empty=False)


def is_released(interception: Interception, management: Management) -> bool:
    """Whether messages pass to the queue again."""
    there = management.bindings_from(interception.source)
    is_restored = all(_is_among(binding, there) for binding in interception.bindings)
    return is_restored or _is_bound(interception.detour.switch, management)


def is_back(interception: Interception, management: Management) -> bool:
    """Whether somebody bound the queue again, so that its messages take both ways."""
    there = management.bindings_from(interception.source)
    return any(_is_among(binding, there) for binding in interception.bindings)


def leads_on(interception: Interception, management: Management) -> bool:
    """Whether what is not intercepted, and what is forwarded, comes to the queue."""
    return _is_bound(interception.forwarding, management)


def rejects_publishes(interception: Interception, management: Management) -> bool:
    """Whether the queue refuses messages while it is full; True where it is missing."""
    try:
        queue = management.queue(interception.queue)
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


def _declare(interception: Interception, management: Management) -> None:
    intercepted = interception.queue
    try:
        management.queue(intercepted)
    except NotFound as error:
        raise NotFound(
            f"The queue “{intercepted}” does not exist, so its intercepted messages wait in "
            f"“{interception.name}”. Create the queue."
        ) from error
    management.declare(interception.objects)


def _is_bound(binding: Binding, management: Management) -> bool:
    return _is_among(binding, management.bindings_from(binding.source))


def _is_among(binding: Binding, found: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the management API reported this binding of an exchange."""
    return any(
        one.get("destination") == binding.destination
        and (one.get("destination_type") == "queue") is binding.destination_is_queue
        and one.get("routing_key") == binding.routing_key
        and (one.get("arguments") or {}) == dict(binding.arguments)
        for one in found
    )


@dataclass(frozen=True)
class Detour:
    """Two temporary exchanges before two queues, where one binding decides which queue it is.

    A queue gets one copy of a message, however many ways lead to it. So the exchange `.in` with the
    alternate exchange `.held` takes the place of a queue's binding: while `.in` is bound to the old
    queue, its messages go there, and while it is not, `.held` takes them into the new one. No
    message takes both ways or none (rabbit_exchange.erl route1, 3.10.8 to 4.3.6;
    tests/real_broker/test_interception.py). Every step may be repeated.

    From the queue `old` to the queue `new`; `name` begins the names of its exchanges.

    With `others`, an exchange, the new queue gets what bindings by headers lead from `.held` to it,
    and by routing keys from `.keys`, and `others` all else.
    """

    name: str
    old: str
    new: str
    others: str = ""

    @property
    def into(self) -> str:
        return f"{self.name}.in"

    @property
    def alternate(self) -> str:
        """The longest of its names."""
        return f"{self.name}.held"

    @property
    def by_key(self) -> str:
        return f"{self.name}.keys"

    @property
    def switch(self) -> Binding:
        """While it is there, messages go to the old queue."""
        return Binding(self.into, self.old, "")

    def entrance(self, binding: Binding) -> Binding:
        """What replaces a binding of the old queue."""
        return replace(binding, destination=self.into, destination_is_queue=False)

    @property
    def objects(self) -> Definitions:
        """What is added, but for the bindings that are switched."""
        into = Exchange(self.into, "fanout", arguments=_alternate(self.alternate))
        if self.others:
            by_headers = Exchange(self.alternate, "headers", arguments=_alternate(self.by_key))
            by_key = Exchange(self.by_key, "direct", arguments=_alternate(self.others))
            return Definitions.of([into, by_headers, by_key])
        held = Exchange(self.alternate, "fanout")
        return Definitions.of([held, into, Binding(self.alternate, self.new, "")])

    def enter(self, binding: Binding, management: Management) -> None:
        """Lead what this binding of the old queue takes through the detour."""
        management.bind(self.switch)
        management.bind(self.entrance(binding))
        management.unbind(binding)

    def remove(self, management: Management) -> None:
        for name in (self.into, self.alternate, *([self.by_key] if self.others else [])):
            management.delete_exchange(name)


def _alternate(exchange: str) -> Arguments:
    return Arguments({"alternate-exchange": exchange})
