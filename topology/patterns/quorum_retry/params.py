"""The parameters of a quorum retry, the wait of each attempt, and the fields of its form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from topology.definitions import MAXIMUM_TTL_MS, Arguments, Binding, Definitions, Exchange, Queue
from topology.delays import milliseconds
from topology.patterns.names import LONGEST_NAME_BYTES, key_problem, name_problem
from topology.patterns.texts import (
    choice_problem,
    number_format,
    read_fields,
    refuse,
    text_functions,
)

KIND = "quorum_retry"

LONGEST_OWN_NAME_BYTES = LONGEST_NAME_BYTES - len("-parking")
MOST_RETRIES = 1_000_000
DEFAULT_SHORTEST = timedelta(seconds=10)
DEFAULT_LONGEST = timedelta(minutes=1)
DEFAULT_LIMIT = 5
KINDS = {
    "failed": "failures: rejected with requeue, or consumer lost",
    "returned": "returned messages: nack with requeue, not counted",
    "all": "both",
}
FIELDS = read_fields(__file__, retry=KINDS)


@dataclass(frozen=True)
class Params:
    """`name` of the work exchange and queue; `retry` is which returns wait, one of KINDS.

    `limit` failures are forgiven; the delay after each lies between `shortest` and `longest`.
    """

    name: str
    retry: str = "failed"
    shortest: timedelta = DEFAULT_SHORTEST
    longest: timedelta = DEFAULT_LONGEST
    limit: int = DEFAULT_LIMIT
    routing_key: str = ""
    parking: str = ""

    def __post_init__(self) -> None:
        if not self.routing_key:
            object.__setattr__(self, "routing_key", self.name)
        if not self.parking:
            object.__setattr__(self, "parking", f"{self.name}-parking")
        refuse(_problems(self))


parse, store = text_functions(Params, limit=number_format(MOST_RETRIES))


def _problems(params: Params) -> dict[str, str]:
    sentences = {
        "name": name_problem(params.name, LONGEST_OWN_NAME_BYTES, "-parking"),
        "retry": choice_problem(params.retry, KINDS),
        "limit": ""
        if 1 <= params.limit <= MOST_RETRIES
        else f"Enter a number from 1 to {MOST_RETRIES}.",
        "routing_key": key_problem(params.routing_key),
        "parking": name_problem(params.parking, LONGEST_NAME_BYTES),
    }
    if params.shortest < timedelta(milliseconds=1):
        sentences["shortest"] = "The shortest delay must be at least 1 ms."
    if params.longest < params.shortest:
        sentences["longest"] = "The longest delay must not be shorter than the shortest delay."
    elif milliseconds(params.longest) > MAXIMUM_TTL_MS:
        sentences["longest"] = "The longest delay can be at most 3650 days."
    if params.parking == params.name:
        sentences["parking"] = "The parking queue must differ from the work queue."
    return sentences


def definitions(params: Params) -> Definitions:
    return Definitions.of(
        [
            Exchange(params.name),
            Queue(params.name, arguments=_arguments(params)),
            Queue(
                params.parking,
                arguments=Arguments({"x-queue-type": "quorum", "x-delivery-limit": -1}),
            ),
            Binding(params.name, params.name, params.routing_key),
        ]
    )


def _arguments(params: Params) -> Arguments:
    return Arguments(
        {
            "x-queue-type": "quorum",
            "x-delayed-retry-type": params.retry,
            "x-delayed-retry-min": milliseconds(params.shortest),
            "x-delayed-retry-max": milliseconds(params.longest),
            "x-delivery-limit": params.limit,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": params.parking,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }
    )


def derive(queues: Sequence[Queue], found: Definitions) -> Iterator[Mapping[str, Any]]:
    """Parameters for quorum queues with delayed retries that dead-letter straight into another
    queue, with a limit and both delays stated. An empty key of the binding would be read as the
    name.
    """
    for queue in queues:
        stated, parking = queue.arguments, queue.dead_letter_routing_key
        limit = stated.number("x-delivery-limit")
        ends_ms = [stated.number(f"x-delayed-retry-{end}") for end in ("min", "max")]
        waits = [timedelta(milliseconds=ms) for ms in ends_ms if ms and 0 < ms <= MAXIMUM_TTL_MS]
        is_direct = queue.type == "quorum" and queue.dead_letter_exchange == ""
        if not is_direct or parking is None or limit is None or len(waits) < len(ends_ms):
            continue
        bound = found.leads(queue.name, queue.name)
        key = next((one.routing_key for one in bound if one.routing_key), "")
        if key or not bound:
            yield {
                "name": queue.name,
                "retry": stated.text("x-delayed-retry-type"),
                "shortest": waits[0],
                "longest": waits[1],
                "limit": limit,
                "routing_key": key,
                "parking": parking,
            }
