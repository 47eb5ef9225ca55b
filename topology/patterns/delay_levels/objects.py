"""What delay levels consist of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from topology.definitions import (
    Arguments,
    ArgumentValue,
    Binding,
    Definitions,
    Exchange,
    Queue,
    is_own_queue,
)
from topology.delays import milliseconds
from topology.patterns.delay_levels.params import Params, delivery_name, level_name, next_name

# The prefix and the number in the names of levels, by preset.
_NAMES = {
    "nsb-v2": re.compile(r"()nsb\.v2\.delay-level-(\d\d)"),
    "nsb-v1": re.compile(r"()nsb\.delay-level-(\d\d)"),
    "celery": re.compile(r"(?:(.*)_)?celery_delayed_(\d\d?)", re.DOTALL),
    "own": re.compile(r"(.*)\.delay-level-(\d\d)", re.DOTALL),
}
_BIT = re.compile(r"((?:\*\.)*)1\.#")
AT_LEAST_ONCE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}


def title(params: Params) -> str:
    return level_name(params, 0).rstrip("0").rstrip("-_")


def definitions(params: Params) -> Definitions:
    """The levels; destinations are bound by `route`."""
    objects: list[Exchange | Queue | Binding] = [Exchange(delivery_name(params), "topic")]
    for level in range(params.levels):
        name, below = level_name(params, level), next_name(params, level)
        skipped = "*." * (params.levels - 1 - level)
        objects += [
            Exchange(name, "topic"),
            Queue(name, arguments=_arguments(params, level)),
            Binding(name, name, f"{skipped}1.#"),
            Binding(name, below, f"{skipped}0.#", destination_is_queue=False),
        ]
    return Definitions.of(objects)


def destinations(params: Params, found: Definitions) -> Sequence[Binding]:
    return _find_bound(delivery_name(params), found)


def _arguments(params: Params, level: int) -> Arguments:
    """As each preset declares them, absent ones included (nservicebus.md 1.1 and 1.8)."""
    stated: dict[str, ArgumentValue] = {
        "x-message-ttl": milliseconds(params.unit) * 2**level,
        "x-dead-letter-exchange": next_name(params, level),
    }
    if params.preset == "nsb-v1":
        return Arguments(stated | {"x-queue-mode": "lazy"})
    stated["x-queue-type"] = params.queue_type
    if params.preset == "celery":
        stated["x-overflow"] = "reject-publish"
    return Arguments(stated | (AT_LEAST_ONCE if params.is_at_least_once else {}))


def derive(queues: Sequence[Queue], found: Definitions) -> Iterator[Mapping[str, Any]]:
    """By one level: its key contains how many levels are above it, its name how many are below,
    and its TTL how long the lowest waits."""
    for queue in queues:
        for preset, pattern in _NAMES.items():
            named = pattern.fullmatch(queue.name)
            bits = (_BIT.fullmatch(b.routing_key) for b in found.leads(queue.name, queue.name))
            bit = next(filter(None, bits), None) if named else None
            if named is None or bit is None:
                continue
            level = int(named[2])
            unit_ms, rest = divmod(queue.message_ttl_ms or 0, 2**level)
            if rest:
                continue
            stem = queue.name.removesuffix(named[2]).removesuffix("level-")
            to_queues = [b.destination_is_queue for b in _find_bound(f"{stem}delivery", found)]
            yield {
                "preset": preset,
                "prefix": named[1] or "",
                "levels": len(bit[1]) // 2 + level + 1,
                "unit": timedelta(milliseconds=unit_ms),
                "queue_type": "quorum" if queue.type == "quorum" else "classic",
                "destinations": "exchanges" if to_queues and not any(to_queues) else "queues",
            }


def _find_bound(delivery: str, found: Definitions) -> Sequence[Binding]:
    """The bindings of destinations to a delivery exchange."""
    return [b for b in found.leaving(delivery) if not is_own_queue(b.destination)]
