"""Declaring objects one after the other, each by the management API."""

from __future__ import annotations

from collections.abc import Iterable

from topology.broker.management.client import Management
from topology.definitions import Binding, BrokerObject, Exchange, Queue


def declare(objects: Iterable[BrokerObject], management: Management) -> None:
    """In their order: `Definitions` has one in which everything can be declared.

    Raises BrokerError; what was declared before stays.
    """
    for obj in objects:
        match obj:
            case Exchange():
                management.declare_exchange(obj)
            case Queue():
                management.declare_queue(obj)
            case Binding():
                management.bind(obj)
