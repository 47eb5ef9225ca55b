"""The parameters of delay queues: a work queue and the delays on offer, and their queues' names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from topology.definitions import MAXIMUM_TTL_MS, Arguments, Definitions, Queue
from topology.delays import format_delay, milliseconds
from topology.patterns.names import LONGEST_NAME_BYTES, byte_length, name_problem
from topology.patterns.queue_types import QUEUE_TYPES, read_type, type_arguments
from topology.patterns.texts import choice_problem, read_fields, refuse, text_functions

KIND = "delay_queues"

SECOND = timedelta(seconds=1)
LONGEST_SECONDS = MAXIMUM_TTL_MS // 1000
MAXIMUM_NAME_BYTES = LONGEST_NAME_BYTES - len("_dlq_1")
FIELDS = read_fields(__file__, queue_type=QUEUE_TYPES)
_NAME = re.compile(r"(.*)_dlq_([1-9][0-9]{0,8})", re.DOTALL)


@dataclass(frozen=True)
class Params:
    """The work queue, and the delays on offer in ascending order, each once."""

    queue: str
    delays: tuple[timedelta, ...]
    queue_type: str = "classic"

    def __post_init__(self) -> None:
        object.__setattr__(self, "delays", tuple(sorted(set(self.delays))))
        name = name_problem(self.queue, MAXIMUM_NAME_BYTES)
        queue_type = choice_problem(self.queue_type, QUEUE_TYPES)
        refuse({"queue": name, "delays": _delays_problem(self), "queue_type": queue_type})


def queue_name(queue: str, delay: timedelta) -> str:
    return f"{queue}_dlq_{delay // SECOND}"


def split_name(name: str) -> tuple[str, timedelta] | None:
    """The inverse of `queue_name`; None also for a delay that no broker takes."""
    match = _NAME.fullmatch(name)
    if match is None or int(match[2]) > LONGEST_SECONDS:
        return None
    return match[1], int(match[2]) * SECOND


parse, store = text_functions(Params)


def _delays_problem(params: Params) -> str:
    if not params.delays:
        return "Enter at least one delay."
    for delay in params.delays:
        if delay < SECOND or delay % SECOND:
            return f"{format_delay(delay)} is not a whole number of seconds. Enter whole seconds."
    longest = params.delays[-1]
    if longest > LONGEST_SECONDS * SECOND:
        return "RabbitMQ accepts no delay over 3650 days."
    if byte_length(queue_name(params.queue, longest)) > LONGEST_NAME_BYTES:
        return (
            f"The queue name for {format_delay(longest)} would exceed 255 bytes. Use a work queue "
            "with a shorter name."
        )
    return ""


def definitions(params: Params) -> Definitions:
    """The delay queues alone: the work queue is somebody else's."""
    return Definitions.of(_delay_queue(params, delay) for delay in params.delays)


def _delay_queue(params: Params, delay: timedelta) -> Queue:
    work = params.queue
    return Queue(
        queue_name(work, delay),
        arguments=Arguments(
            {
                **type_arguments(params.queue_type),
                "x-message-ttl": milliseconds(delay),
                "x-dead-letter-exchange": "",
                "x-dead-letter-routing-key": work,
            }
        ),
    )


def derive(queues: Sequence[Queue], found: Definitions) -> Iterator[Mapping[str, Any]]:
    """Parameters for queues `<queue>_dlq_<seconds>` that die into `<queue>` through the default
    exchange, with the delays in their names.
    """
    delays: dict[str, list[timedelta]] = defaultdict(list)
    types: dict[str, str] = {}
    for queue in queues:
        named = split_name(queue.name)
        if named and (queue.dead_letter_exchange, queue.dead_letter_routing_key) == ("", named[0]):
            delays[named[0]].append(named[1])
            types.setdefault(named[0], read_type(queue))
    for work, waits in delays.items():
        yield {"queue": work, "delays": tuple(waits), "queue_type": types[work]}
