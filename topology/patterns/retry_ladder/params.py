"""The parameters of a retry ladder, its rungs' names and keys, and the fields of its form."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.delays import milliseconds, parse_delay
from topology.patterns.names import (
    LONGEST_NAME_BYTES,
    byte_length,
    name_problem,
    unicode_problem,
)
from topology.patterns.queue_types import QUEUE_TYPES, read_type, type_arguments
from topology.patterns.texts import (
    Format,
    choice_problem,
    delay_problem,
    read_fields,
    refuse,
    text_functions,
    write_delays,
)

KIND = "retry_ladder"

MOST_RUNGS = 50
LONGEST_OWN_NAME_BYTES = LONGEST_NAME_BYTES - len(f"-rung-{MOST_RUNGS}")
DEFAULT_DELAYS = (timedelta(seconds=10), timedelta(minutes=1), timedelta(minutes=10))

FIELDS = read_fields(__file__, queue_type=QUEUE_TYPES)
_TRIED = re.compile(r"(.+)\.try\.([1-9]\d{0,2})", re.DOTALL)


@dataclass(frozen=True)
class Params:
    """`name` of the work exchange and queue, the rungs' delays in their order, key and parking."""

    name: str
    delays: tuple[timedelta, ...] = DEFAULT_DELAYS
    routing_key: str = ""
    parking: str = ""
    queue_type: str = "classic"

    def __post_init__(self) -> None:
        if not self.routing_key:
            object.__setattr__(self, "routing_key", self.name)
        if not self.parking:
            object.__setattr__(self, "parking", f"{self.name}-parking")
        refuse(_problems(self))

    @property
    def rungs(self) -> range:
        """The rungs' numbers, from 1."""
        return range(1, len(self.delays) + 1)


def ladder_name(params: Params) -> str:
    return f"{params.name}-ladder"


def rung_name(params: Params, rung: int) -> str:
    return f"{params.name}-rung-{rung}"


def tried_key(params: Params, times: int) -> str:
    """The key of a message that climbed so many rungs."""
    return f"{params.routing_key}.try.{times}" if times else params.routing_key


def _read_rungs(text: str) -> tuple[timedelta, ...]:
    """Every part must be a delay. Raises DelayError."""
    return tuple(parse_delay(part.strip()) for part in text.split(",")) if text.strip() else ()


parse, store = text_functions(Params, delays=Format(_read_rungs, write_delays))


def _problems(params: Params) -> dict[str, str]:
    last = len(params.delays)
    own = {params.name, *(rung_name(params, rung) for rung in params.rungs)}
    sentences = {
        "name": name_problem(params.name, LONGEST_OWN_NAME_BYTES, f"-rung-{MOST_RUNGS}"),
        "delays": _delays_problem(params.delays),
        "queue_type": choice_problem(params.queue_type, QUEUE_TYPES),
        "routing_key": unicode_problem(params.routing_key),
        "parking": name_problem(params.parking, LONGEST_NAME_BYTES),
    }
    if params.parking in own:
        sentences["parking"] = "The parking queue must differ from the ladder's other queues."
    if byte_length(tried_key(params, last)) > LONGEST_NAME_BYTES:
        longest = LONGEST_NAME_BYTES - len(f".try.{last}")
        sentences["routing_key"] = (
            f"The routing key has at most {longest} bytes, so that “.try.{last}” still fits."
        )
    return sentences


def _delays_problem(delays: Sequence[timedelta]) -> str:
    if not 1 <= len(delays) <= MOST_RUNGS:
        return f"Enter at least one and at most {MOST_RUNGS} delays."
    if problem := delay_problem(min(delays)) or delay_problem(max(delays)):
        return problem
    if list(delays) != sorted(delays):
        return "Each delay must be at least as long as the one before."
    return ""


def definitions(params: Params) -> Definitions:
    work, ladder, first = params.name, ladder_name(params), rung_name(params, 1)
    objects: list[Exchange | Queue | Binding] = [
        Exchange(work),
        Exchange(ladder, arguments=Arguments({"alternate-exchange": first})),
        Exchange(first, "fanout"),
        Binding(first, first, ""),
        _queue(params, work, {"x-dead-letter-exchange": ladder}),
        _queue(params, params.parking, {}),
        Binding(ladder, params.parking, tried_key(params, len(params.delays))),
        Binding(work, work, tried_key(params, 0)),
    ]
    for rung in params.rungs:
        name = rung_name(params, rung)
        objects += [
            _queue(
                params,
                name,
                {
                    "x-message-ttl": milliseconds(params.delays[rung - 1]),
                    "x-dead-letter-exchange": params.name,
                    "x-dead-letter-routing-key": tried_key(params, rung),
                },
            ),
            Binding(ladder, name, tried_key(params, rung - 1)),
            Binding(work, work, tried_key(params, rung)),
        ]
    return Definitions.of(objects)


def _queue(params: Params, name: str, arguments: dict[str, str | int]) -> Queue:
    of_type = type_arguments(params.queue_type, is_limited="x-message-ttl" in arguments)
    return Queue(name, arguments=Arguments({**of_type, **arguments}))


def derive(queues: Sequence[Queue], found: Definitions) -> Iterator[Mapping[str, Any]]:
    """Parameters for queues `<name>-rung-1` and so on that expire into the exchange `<name>` with
    the keys `<key>.try.1` and so on.
    """
    name = queues[0].dead_letter_exchange or ""
    delays: dict[str, dict[int, timedelta | None]] = defaultdict(dict)
    types: dict[str, str] = {}
    for queue in queues:
        tried = _TRIED.fullmatch(queue.dead_letter_routing_key or "")
        if tried and queue.name == f"{name}-rung-{tried[2]}" and "x-expires" not in queue.arguments:
            delays[tried[1]][int(tried[2])] = queue.message_ttl
            types.setdefault(tried[1], read_type(queue))
    work = found.queue(name)
    if work is not None and work.dead_letter_exchange != f"{name}-ladder":
        return
    for key, rungs in delays.items():
        if sorted(rungs) == list(range(1, len(rungs) + 1)):
            waits = tuple(rungs[number] for number in sorted(rungs))
            parking = _find_parking(name, key, len(rungs), found)
            yield {
                "name": name,
                "delays": waits,
                "routing_key": key,
                "parking": parking,
                "queue_type": types[key],
            }


def _find_parking(name: str, key: str, last: int, found: Definitions) -> str:
    """The queue to which the ladder leads from the last rung, whether its exchange is direct or a
    topic; "" for the usual one and for none."""
    ends = (f"{key}.try.{last}", f"#.try.{last}")
    leading = [b for b in found.leaving(f"{name}-ladder") if b.routing_key in ends]
    queues = [found.queue(b.destination) for b in leading if b.destination_is_queue]
    parking = [queue.name for queue in queues if queue and queue.message_ttl_ms is None]
    return "" if f"{name}-parking" in parking else next(iter(parking), "")
