"""Addresses, snapshots and plain vhosts for tests, without a broker or a database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from topology.broker.address import Address
from topology.definitions import Arguments, Definitions, Queue
from topology.snapshot import QueueNumbers, Snapshot

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
MANAGEMENT = "http://broker.test:15672"


def an_address(vhost: str = "/", *, password: str = "hunter2", **changes: Any) -> Address:  # noqa: S107
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
