"""Addresses, snapshots and plain vhosts for tests, without a broker or a database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from topology.broker.address import Address
from topology.broker.amqp.frames import Delivery
from topology.broker.errors import Unreachable
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.message import Message
from topology.patterns.retry_pair import params as retry_pair_params
from topology.patterns.retry_pair.pattern import retry_pair
from topology.provisioning.recognition import Found
from topology.snapshot import QueueNumbers, Snapshot
from topology.structure.taps import tap_definitions

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)

MANAGEMENT = "http://broker.test:15672"


def an_address(vhost: str = "/", *, password: str = "hunter2", **changes: Any) -> Address:
    values: dict[str, Any] = {"host": "broker.test", "port": 5672, "username": "ann"}
    return Address(
        vhost=vhost, password=password, **(values | {"management_url": MANAGEMENT} | changes)
    )


def a_queue(name: str, **arguments: Any) -> Queue:
    """A queue with arguments named as in Python: `ttl`, `dlx`, `key`, `type`, or by `x_...`."""
    names = {
        "ttl": "x-message-ttl",
        "dlx": "x-dead-letter-exchange",
        "key": "x-dead-letter-routing-key",
        "type": "x-queue-type",
    }
    stated = {names.get(n, n.replace("_", "-")): value for n, value in arguments.items()}
    return Queue(name, arguments=Arguments(stated))


def a_snapshot(
    definitions: Definitions,
    numbers: Mapping[str, QueueNumbers] | None = None,
    *,
    version: str = "4.3.6",
) -> Snapshot:
    return Snapshot(version, NOON, definitions, definitions, numbers=numbers or {})


PARAMS = retry_pair_params.Params("orders", timedelta(seconds=5))

PAIR = retry_pair.definitions(PARAMS)

TAP = tap_definitions("delayboard.tap.orders", retry_pair.taps(PARAMS), "classic")

EVERYTHING = PAIR | TAP

ALL_OURS = [obj.identity for obj in EVERYTHING]


class FakeBroker:
    """Writes down what the management API is asked to change; may fail at the nth call."""

    def __init__(self, fails_at: int = 0) -> None:
        self.calls: list[tuple[str, Any]] = []
        self._fails_at = fails_at

    def _note(self, verb: str, obj: Any) -> None:
        if len(self.calls) + 1 == self._fails_at:
            raise Unreachable("gone")
        self.calls.append((verb, obj))

    def declare_exchange(self, exchange: Exchange) -> None:
        self._note("exchange", exchange.name)

    def declare_queue(self, queue: Queue) -> None:
        self._note("queue", queue.name)

    def bind(self, binding: Binding) -> None:
        self._note("bind", (binding.source, binding.destination))

    def unbind(self, binding: Binding) -> None:
        self._note("unbind", (binding.source, binding.destination))

    def delete_queue(self, name: str, *, only_if_empty: bool) -> None:
        self._note("delete queue", (name, only_if_empty))

    def delete_exchange(self, name: str) -> None:
        self._note("delete exchange", name)


def nothing(done: int, total: int) -> None:
    """A pulse that nobody listens to."""


def is_complete(found: Found) -> bool:
    """Whether nothing is missing of a topology that was found, and nothing differs."""
    return found.plan is not None and found.plan.is_empty and not found.use.missing


def delivered(message: Message, tag: int, received_at: datetime) -> Delivery:
    """A message as a consumer got it."""
    names = (message.exchange, message.routing_key)
    delivery = Delivery(tag, message.redelivered, *names, message.properties.raw)
    delivery.body, delivery.received_at = message.body, received_at
    delivery._message = message
    return delivery
