"""What delay levels consist of."""

from __future__ import annotations

from collections.abc import Sequence

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
    leaving = found.leaving(delivery_name(params))
    return [b for b in leaving if not is_own_queue(b.destination)]


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
