"""The parameters of a busy wait: a processing queue, its delays and its due header."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from topology.definitions import Arguments, Definitions, Queue
from topology.delays import format_delay, milliseconds
from topology.patterns.names import LONGEST_NAME_BYTES, header_problem, name_problem
from topology.patterns.queue_types import QUEUE_TYPES, read_type, type_arguments
from topology.patterns.texts import (
    choice_problem,
    delay_problem,
    read_fields,
    refuse,
    text_functions,
)

KIND = "busy_wait"

DUE_HEADER = "due-at-ms"
# Header with the due time for which the forwarder has forwarded a message. Headers “x-opt-” change
# no content id.
WAITED_HEADER = "x-opt-delayboard-waited"
# Shortest lap of a waiting message: with less, the broker would do nothing but laps.
SHORTEST_LAP = timedelta(milliseconds=50)
DELAY_SUFFIX, WAIT_SUFFIX = "-delay", "-busy-wait"
LONGEST_QUEUE_BYTES = LONGEST_NAME_BYTES - len(WAIT_SUFFIX)
# Prefixes of headers that the broker and Delayboard write themselves.
RESERVED = ("x-", "delayboard-")

FIELDS = read_fields(__file__, queue_type=QUEUE_TYPES)


@dataclass(frozen=True)
class Params:
    """The processing queue, the available delays, and the header with the due time."""

    queue: str
    delays: tuple[timedelta, ...]
    due_header: str = DUE_HEADER
    queue_type: str = "classic"

    def __post_init__(self) -> None:
        object.__setattr__(self, "delays", tuple(sorted(set(self.delays))))
        refuse(
            {
                "queue": name_problem(self.queue, LONGEST_QUEUE_BYTES),
                "delays": _delays_problem(self.delays),
                "due_header": _header_problem(self.due_header),
                "queue_type": choice_problem(self.queue_type, QUEUE_TYPES),
            }
        )

    @property
    def lap(self) -> timedelta:
        """How long one stay in the delay queue takes."""
        return _divisor(self.delays)


def delay_name(params: Params) -> str:
    return params.queue + DELAY_SUFFIX


def wait_name(params: Params) -> str:
    return params.queue + WAIT_SUFFIX


def laps_of(params: Params, delay: timedelta) -> int:
    """How often a message with this delay passes the delay queue."""
    return max(0, -(-delay // params.lap))


parse, store = text_functions(Params)


def _divisor(delays: tuple[timedelta, ...]) -> timedelta:
    return timedelta(milliseconds=math.gcd(*(milliseconds(delay) for delay in delays)))


def _delays_problem(delays: tuple[timedelta, ...]) -> str:
    if not delays:
        return "Enter at least one delay."
    if problem := delay_problem(delays[0]) or delay_problem(delays[-1]):
        return problem
    lap = _divisor(delays)
    if lap >= SHORTEST_LAP:
        return ""
    return (
        f"The lap would be {format_delay(lap)}, which is {timedelta(seconds=1) // lap} laps a "
        "second for each waiting message. Choose delays whose greatest common divisor is at "
        f"least {format_delay(SHORTEST_LAP)}."
    )


def _header_problem(name: str) -> str:
    if wrong := header_problem(name):
        return wrong
    if name.startswith(RESERVED) or name in ("CC", "BCC"):
        return f"RabbitMQ or Delayboard writes the header “{name}”. Choose another header."
    return ""


def definitions(params: Params) -> Definitions:
    """The processing queue is its consumer's, and not touched."""
    room: dict[str, str | int] = {
        **type_arguments(params.queue_type),
        "x-message-ttl": params.lap // timedelta(milliseconds=1),
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": wait_name(params),
    }
    return Definitions.of(
        [
            Queue(delay_name(params), arguments=Arguments(room)),
            Queue(
                wait_name(params),
                arguments=Arguments(type_arguments(params.queue_type, is_limited=False)),
            ),
        ]
    )


def derive(queues: Sequence[Queue], found: Definitions) -> Iterator[Mapping[str, Any]]:
    """Parameters for a delay queue and the busy-waiting queue that it dead-letters into, by their
    names.

    By structure alone it is a delay queue of its busy-waiting queue: the broker has no information
    on what a consumer does. The due header is not visible either; the usual one is assumed.
    """
    for queue in queues:
        name = queue.name.removesuffix(DELAY_SUFFIX)
        leads_to = (queue.dead_letter_exchange, queue.dead_letter_routing_key)
        if name != queue.name and leads_to == ("", name + WAIT_SUFFIX):
            queue_type = read_type(queue)
            yield {"queue": name, "delays": (queue.message_ttl,), "queue_type": queue_type}
