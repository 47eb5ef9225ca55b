"""The parameters of hold queues: a namespace with its keys and delays, and its queues' names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from topology.definitions import MAXIMUM_TTL_MS, Arguments, Definitions, Queue
from topology.delays import milliseconds
from topology.patterns.names import (
    LONGEST_NAME_BYTES,
    byte_length,
    unicode_problem,
    visibility_problem,
)
from topology.patterns.pattern import ParamsError
from topology.patterns.texts import (
    choice_problem,
    names_format,
    read_fields,
    refuse,
    text_functions,
)

KIND = "hold_queues"
SHORTEST_LEASE_MS = 60_000
LEASES = {
    "generous": "the delay plus at least a minute",
    "double": "twice the delay",
}
FIELDS = read_fields(__file__, lease=LEASES)


@dataclass(frozen=True)
class Params:
    """A namespace: the destination exchange, the keys and delays on offer (empty: any)."""

    exchange: str = ""
    keys: tuple[str, ...] = ()
    delays: tuple[timedelta, ...] = ()
    lease: str = "generous"

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", tuple(sorted(set(self.keys))))
        object.__setattr__(self, "delays", tuple(sorted(set(self.delays))))
        refuse(_problems(self))


def queue_name(params: Params, delay: timedelta, key: str) -> str:
    return f"delay.{milliseconds(delay)}.{params.exchange}.{key}"


def expires_ms(params: Params, delay: timedelta) -> int:
    """How long the hold queue exists after its last declare (milliseconds)."""
    ms = milliseconds(delay)
    return 2 * ms if params.lease == "double" else max(2 * ms, ms + SHORTEST_LEASE_MS)


parse, store = text_functions(Params, keys=names_format("keys"))


def delay_problem(params: Params, delay: timedelta) -> str:
    if milliseconds(delay) < 1:
        return "The delay must be at least 1 ms."
    if expires_ms(params, delay) > MAXIMUM_TTL_MS:
        return "RabbitMQ accepts no lease over 3650 days, so the delay can be at most half of that."
    return ""


def _problems(params: Params) -> dict[str, str]:
    problems = {"lease": choice_problem(params.lease, LEASES)}
    if byte_length(params.exchange) > LONGEST_NAME_BYTES - len("delay.1.."):
        problems["exchange"] = (
            "The name of the hold queue would exceed 255 bytes. Use a shorter exchange or key."
        )
    elif odd := visibility_problem(params.exchange):
        problems["exchange"] = odd
    wrong = [sentence for delay in params.delays if (sentence := delay_problem(params, delay))]
    if wrong:
        problems["delays"] = wrong[0]
    longest = max(params.delays, default=timedelta(milliseconds=1))
    for key in params.keys:
        if wrong_key := unicode_problem(key):
            problems["keys"] = wrong_key
        elif byte_length(queue_name(params, longest, key)) > LONGEST_NAME_BYTES:
            problems["keys"] = (
                f"The hold queue name for “{key}” would exceed 255 bytes. Use a shorter "
                "exchange or key."
            )
    return problems


def definitions(params: Params) -> Definitions:
    """No permanent objects: `route` declares a hold queue when it is used."""
    return Definitions()


def hold_queue(params: Params, delay: timedelta, key: str) -> Queue:
    return Queue(
        queue_name(params, delay, key),
        arguments=Arguments(
            {
                "x-queue-type": "classic",
                "x-message-ttl": milliseconds(delay),
                "x-dead-letter-exchange": params.exchange,
                "x-dead-letter-routing-key": key,
                "x-expires": expires_ms(params, delay),
            }
        ),
    )


def is_held_for(exchange: str, queue: Queue) -> bool:
    key = queue.dead_letter_routing_key
    return (
        queue.dead_letter_exchange == exchange
        and key is not None
        and queue.arguments.number("x-expires") is not None
        and queue.name == f"delay.{queue.message_ttl_ms}.{exchange}.{key}"
    )


def is_own(params: Params, queue: Queue) -> bool:
    """Whether a hold queue of this namespace is declared as its others are."""
    delay, key = queue.message_ttl or timedelta(0), queue.dead_letter_routing_key or ""
    return queue.with_type() == hold_queue(params, delay, key)


def derive(queues: Sequence[Queue], found: Definitions) -> Iterator[Mapping[str, Any]]:
    """Parameters for hold queues by their names, with each lease that one of them has."""
    exchange = queues[0].dead_letter_exchange or ""
    held = [queue for queue in queues if is_held_for(exchange, queue)]
    keys = tuple(queue.dead_letter_routing_key for queue in held)
    with suppress(ParamsError):
        for lease in LEASES if held else ():
            params = Params(exchange, lease=lease)
            if any(is_own(params, queue) for queue in held):
                waits = tuple(queue.message_ttl for queue in held)
                yield {"exchange": exchange, "keys": keys, "delays": waits, "lease": lease}
