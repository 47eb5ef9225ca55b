"""The parameters of a retry pair, and what it consists of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.delays import milliseconds
from topology.patterns.names import key_problem, name_problem
from topology.patterns.queue_types import QUEUE_TYPES, read_type, type_arguments
from topology.patterns.texts import (
    choice_problem,
    delay_problem,
    read_fields,
    refuse,
    text_functions,
)

KIND = "retry_pair"
DEFAULT_DELAY = timedelta(milliseconds=300_000)
SUFFIX = "-retry"
MAXIMUM_NAME_BYTES = 255 - len(SUFFIX)
# Least number of the six objects that a recognized pair has; a missing exchange has no bindings.
LEAST_LEFT = 4

FIELDS = read_fields(__file__, queue_type=QUEUE_TYPES)


@dataclass(frozen=True)
class Params:
    """`name` of the work exchange and queue; `delay` on the retry side; the bindings' key."""

    name: str
    delay: timedelta = DEFAULT_DELAY
    routing_key: str = ""
    queue_type: str = "classic"

    def __post_init__(self) -> None:
        if not self.routing_key:
            object.__setattr__(self, "routing_key", self.name)
        refuse(
            {
                "name": name_problem(self.name, MAXIMUM_NAME_BYTES, SUFFIX),
                "routing_key": key_problem(self.routing_key),
                "delay": delay_problem(self.delay),
                "queue_type": choice_problem(self.queue_type, QUEUE_TYPES),
            }
        )


def retry_name(params: Params) -> str:
    return params.name + SUFFIX


parse, store = text_functions(Params)


def definitions(params: Params) -> Definitions:
    work, retry = params.name, retry_name(params)
    return Definitions.of(
        [
            Exchange(work),
            Exchange(retry),
            Queue(work, arguments=_arguments(params, retry)),
            Queue(retry, arguments=_arguments(params, work, milliseconds(params.delay))),
            Binding(work, work, params.routing_key),
            Binding(retry, retry, params.routing_key),
        ]
    )


def _arguments(params: Params, dead_letter_exchange: str, ttl_ms: int | None = None) -> Arguments:
    stated = type_arguments(params.queue_type, is_limited=ttl_ms is not None)
    stated["x-dead-letter-exchange"] = dead_letter_exchange
    if ttl_ms is not None:
        stated["x-message-ttl"] = ttl_ms
    return Arguments(stated)


def derive(queues: Sequence[Queue], found: Definitions) -> Iterator[Mapping[str, Any]]:
    """Parameters for a queue `<name>-retry` that expires into the exchange `<name>`, while most of
    a pair is there. An empty key would be read as the name.
    """
    for retry in queues:
        name = retry.name.removesuffix(SUFFIX)
        work = found.queue(name)
        if work and (work.dead_letter_exchange, work.message_ttl_ms) != (retry.name, None):
            continue
        bound = (found.leads(name, name), found.leads(retry.name, retry.name))
        key = next((one.routing_key for one in (*bound[0], *bound[1]) if one.routing_key), "")
        there = (retry, work, found.exchange(name), found.exchange(retry.name), *bound)
        if (
            key
            and name not in ("", retry.name)
            and retry.dead_letter_exchange == name
            and sum(map(bool, there)) >= LEAST_LEFT
        ):
            queue_type = read_type(retry)
            yield {
                "name": name,
                "delay": retry.message_ttl,
                "routing_key": key,
                "queue_type": queue_type,
            }
