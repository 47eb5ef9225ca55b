"""The parameters of a retry pair, and what it consists of."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.delays import milliseconds
from topology.patterns.names import key_problem, name_problem
from topology.patterns.texts import delay_problem, read_fields, refuse, text_functions

KIND = "retry_pair"
DEFAULT_DELAY = timedelta(milliseconds=300_000)
MAXIMUM_NAME_BYTES = 255 - len("-retry")

FIELDS = read_fields(__file__)


@dataclass(frozen=True)
class Params:
    """`name` of the work exchange and queue; `delay` on the retry side; the bindings' key."""

    name: str
    delay: timedelta = DEFAULT_DELAY
    routing_key: str = ""

    def __post_init__(self) -> None:
        if not self.routing_key:
            object.__setattr__(self, "routing_key", self.name)
        refuse(
            {
                "name": name_problem(self.name, MAXIMUM_NAME_BYTES, "-retry"),
                "routing_key": key_problem(self.routing_key),
                "delay": delay_problem(self.delay),
            }
        )


def retry_name(params: Params) -> str:
    return f"{params.name}-retry"


parse, store = text_functions(Params)


def definitions(params: Params) -> Definitions:
    work, retry = params.name, retry_name(params)
    return Definitions.of(
        [
            Exchange(work),
            Exchange(retry),
            Queue(work, arguments=_arguments(retry)),
            Queue(retry, arguments=_arguments(work, milliseconds(params.delay))),
            Binding(work, work, params.routing_key),
            Binding(retry, retry, params.routing_key),
        ]
    )


def _arguments(dead_letter_exchange: str, ttl_ms: int | None = None) -> Arguments:
    stated: dict[str, str | int] = {
        "x-queue-type": "classic",
        "x-dead-letter-exchange": dead_letter_exchange,
    }
    if ttl_ms is not None:
        stated["x-message-ttl"] = ttl_ms
    return Arguments(stated)
