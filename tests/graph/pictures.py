"""Graphs to draw in the tests of pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from topology.definitions import Arguments, Definitions, Exchange, Queue
from topology.patterns import retry_pair
from topology.snapshot import QueueNumbers, Snapshot

HOSTILE = "</title><script>alert(1)</script>\"'&\u202eevil\n"
LONG = "shop.orders." * 21 + "end"


def pair(name: str = "orders") -> Definitions:
    """The definitions of a retry pair of any name, also of one that no form would take."""
    plain = retry_pair.definitions(retry_pair.Params("plain"))

    def renamed(text: str) -> str:
        return text.replace("plain", name)

    def arguments(old: Arguments) -> Arguments:
        return Arguments({k: renamed(v) if isinstance(v, str) else v for k, v in old.items()})

    return Definitions.of(
        replace(thing, name=renamed(thing.name), arguments=arguments(thing.arguments))
        if isinstance(thing, (Exchange, Queue))
        else replace(
            thing,
            source=renamed(thing.source),
            destination=renamed(thing.destination),
            routing_key=renamed(thing.routing_key),
        )
        for thing in plain
    )


def seen(
    definitions: Definitions,
    numbers: Mapping[str, QueueNumbers] | None = None,
    rates: Mapping[str, float] | None = None,
) -> Snapshot:
    """A snapshot that found these definitions and numbers."""
    return Snapshot(
        version="4.3.6",
        taken_at=datetime(2026, 3, 1, tzinfo=UTC),
        definitions=definitions,
        declared=definitions,
        numbers=numbers or {},
        exchange_rates=rates or {},
    )


def delay_queue(name: str, target: str, seconds: int) -> Queue:
    """A queue that dies through the default exchange into `target`."""
    return Queue(
        name,
        arguments=Arguments(
            {
                "x-message-ttl": seconds * 1000,
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": target,
            }
        ),
    )
