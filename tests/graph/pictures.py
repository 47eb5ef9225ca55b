"""Graphs to draw in the tests of pictures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from topology.definitions import Arguments, Binding, BrokerObject, Definitions, Exchange, Queue
from topology.graph.ladder import Levels
from topology.patterns.retry_pair import params as retry_pair_params
from topology.patterns.retry_pair.pattern import retry_pair
from topology.snapshot import QueueNumbers, Snapshot

HOSTILE = "</title><script>alert(1)</script>\"'&\u202eevil\n"
LONG = "shop.orders." * 21 + "end"


def pair(name: str = "orders") -> Definitions:
    """The definitions of a retry pair of any name, also of one that no form would take."""
    plain = retry_pair.definitions(retry_pair_params.Params("plain"))

    def renamed(text: str) -> str:
        return text.replace("plain", name)

    def arguments(old: Arguments) -> Arguments:
        return Arguments({k: renamed(v) if isinstance(v, str) else v for k, v in old.items()})

    return Definitions.of(
        replace(obj, name=renamed(obj.name), arguments=arguments(obj.arguments))
        if isinstance(obj, (Exchange, Queue))
        else replace(
            obj,
            source=renamed(obj.source),
            destination=renamed(obj.destination),
            routing_key=renamed(obj.routing_key),
        )
        for obj in plain
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


LADDER = Levels(
    [f"shop.delay-level-{level:02}" for level in range(28)],
    "shop.delay-delivery",
    timedelta(seconds=1),
)


def ladder_of(levels: int, unit: timedelta = timedelta(seconds=1)) -> Levels:
    """The names of a set of so many levels."""
    return Levels(LADDER.names[:levels], LADDER.delivery, unit)


def level_set(levels: Levels = LADDER) -> Definitions:
    """The definitions of a set, built by hand: at-least-once quorum queues, no destination."""
    objects: list[BrokerObject] = [Exchange(levels.delivery, "topic")]
    for level, name in enumerate(levels.names):
        below = levels.names[level - 1] if level else levels.delivery
        skipped = "*." * (len(levels.names) - 1 - level)
        objects += [
            Exchange(name, "topic"),
            Queue(name, arguments=_level_arguments(levels, level, below)),
            Binding(name, name, f"{skipped}1.#"),
            Binding(name, below, f"{skipped}0.#", destination_is_queue=False),
        ]
    return Definitions.of(objects)


def bound(*names: str, levels: Levels = LADDER, in_queues: bool = True) -> Definitions:
    """Destinations of these names, bound to the delivery exchange."""
    objects: list[BrokerObject] = []
    for name in names:
        end = Queue(name) if in_queues else Exchange(name, "fanout")
        objects += [end, Binding(levels.delivery, name, f"#.{name}", in_queues)]
    return Definitions.of(objects)


def _level_arguments(levels: Levels, level: int, below: str) -> Arguments:
    return Arguments(
        {
            "x-queue-type": "quorum",
            "x-message-ttl": levels.unit // timedelta(milliseconds=1) * 2**level,
            "x-dead-letter-exchange": below,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }
    )
