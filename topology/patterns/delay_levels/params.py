"""The parameters of delay levels: presets, names, bounds, and what they consist of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from topology.definitions import (
    MAXIMUM_TTL_MS,
    Arguments,
    ArgumentValue,
    Binding,
    Definitions,
    Exchange,
    Queue,
    is_own_queue,
)
from topology.delays import milliseconds
from topology.patterns.names import LONGEST_NAME_BYTES, name_problem
from topology.patterns.texts import (
    choice_problem,
    names_format,
    number_format,
    read_fields,
    refuse,
    text_functions,
)

KIND = "delay_levels"
LEVELS = 28
SECOND = timedelta(seconds=1)
SHORTEST_UNIT = timedelta(milliseconds=50)
LONGEST_PREFIX_BYTES = 200
PRESETS = {
    "nsb-v2": "NServiceBus from 7.0 on (nsb.v2, quorum queues)",
    "nsb-v1": "NServiceBus before 7.0 (nsb, classic queues)",
    "celery": "Celery from 5.5 on (celery_delayed)",
    "own": "custom names",
}
QUEUE_TYPES = {"quorum": "quorum, at least once", "classic": "classic, at most once"}
DESTINATIONS = {"queues": "queues", "exchanges": "exchanges (NServiceBus, conventional routing)"}

# Preset -> form of the names of levels, with prefix and number.
_NAMES = {
    "nsb-v2": re.compile(r"()nsb\.v2\.delay-level-(\d\d)"),
    "nsb-v1": re.compile(r"()nsb\.delay-level-(\d\d)"),
    "celery": re.compile(r"(?:(.*)_)?celery_delayed_(\d\d?)", re.DOTALL),
    "own": re.compile(r"(.*)\.delay-level-(\d\d)", re.DOTALL),
}
_BIT = re.compile(r"((?:\*\.)*)1\.#")
AT_LEAST_ONCE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
FIELDS = read_fields(__file__, preset=PRESETS, queue_type=QUEUE_TYPES, destinations=DESTINATIONS)


@dataclass(frozen=True)
class Params:
    """`unit` is the wait of level 0; all but `own` have 28 levels and a unit of a second."""

    preset: str = "nsb-v2"
    prefix: str = ""
    levels: int = LEVELS
    unit: timedelta = SECOND
    queue_type: str = "quorum"
    destinations: str = "queues"
    exit_taps: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "exit_taps", tuple(sorted(set(self.exit_taps))))
        if self.preset in ("nsb-v1", "nsb-v2"):
            wanted = "classic" if self.preset == "nsb-v1" else "quorum"
            object.__setattr__(self, "queue_type", wanted)
        refuse(_problems(self))

    @property
    def is_at_least_once(self) -> bool:
        return self.queue_type == "quorum"

    @property
    def maximum(self) -> timedelta:
        """The longest delay: every bit set."""
        return timedelta(milliseconds=milliseconds(self.unit) * (2**self.levels - 1))


def level_name(params: Params, level: int) -> str:
    """The name of the level's exchange and queue."""
    match params.preset:
        case "nsb-v1":
            return f"nsb.delay-level-{level:02}"
        case "nsb-v2":
            return f"nsb.v2.delay-level-{level:02}"
        case "celery":
            return f"{_celery_prefix(params)}celery_delayed_{level}"
    return f"{params.prefix}.delay-level-{level:02}"


def delivery_name(params: Params) -> str:
    match params.preset:
        case "nsb-v1":
            return "nsb.delay-delivery"
        case "nsb-v2":
            return "nsb.v2.delay-delivery"
        case "celery":
            return f"{_celery_prefix(params)}celery_delayed_delivery"
    return f"{params.prefix}.delay-delivery"


def next_name(params: Params, level: int) -> str:
    return level_name(params, level - 1) if level else delivery_name(params)


parse, store = text_functions(
    Params, levels=number_format(LEVELS), exit_taps=names_format("exit_taps")
)


def _celery_prefix(params: Params) -> str:
    return f"{params.prefix}_" if params.prefix else ""


def _problems(params: Params) -> dict[str, str]:
    problems = {
        "preset": choice_problem(params.preset, PRESETS),
        "queue_type": choice_problem(params.queue_type, QUEUE_TYPES),
        "destinations": choice_problem(params.destinations, DESTINATIONS),
    }
    if not 1 <= params.levels <= LEVELS:
        problems["levels"] = f"Enter a number from 1 to {LEVELS}."
    elif params.preset != "own" and params.levels != LEVELS:
        problems["levels"] = f"This preset has {LEVELS} levels. Enter {LEVELS}."
    if params.unit < SHORTEST_UNIT:
        problems["unit"] = "The step must be at least 50ms."
    elif params.preset != "own" and params.unit != SECOND:
        problems["unit"] = "This preset uses steps of 1s. Enter 1s."
    elif milliseconds(params.unit) * 2 ** (params.levels - 1) > MAXIMUM_TTL_MS:
        problems["unit"] = (
            "The TTL of the highest level exceeds RabbitMQ's limit of 3650 days. Use fewer "
            "levels or a shorter step."
        )
    if params.exit_taps and (params.destinations == "queues" or not params.is_at_least_once):
        problems["exit_taps"] = (
            "Exit taps need quorum queues and exchanges as destinations. Leave the field empty."
        )
    for name in params.exit_taps:
        problems["exit_taps"] = problems.get("exit_taps") or name_problem(name, LONGEST_NAME_BYTES)
    return {**problems, "prefix": _prefix_problem(params)}


def _prefix_problem(params: Params) -> str:
    if params.preset in ("nsb-v1", "nsb-v2") and params.prefix:
        return "This preset has no prefix. Leave the field empty."
    if params.preset == "own" and not params.prefix:
        return "Custom names need a prefix."
    return name_problem(params.prefix, LONGEST_PREFIX_BYTES) if params.prefix else ""


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
    """The arguments as each preset declares them, absent ones included (nservicebus.md 1.1 and
    1.8).
    """
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
    """Parameters from one level: its key contains how many levels are above it, its name how many
    are below, and its TTL how long the lowest waits.
    """
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
