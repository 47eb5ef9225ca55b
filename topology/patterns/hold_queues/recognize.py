"""Hold queues in a vhost, by the exchange that they hold for, and what one is declared with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta

from topology.definitions import Arguments, Definitions, Queue
from topology.delays import milliseconds
from topology.patterns.hold_queues.params import KIND, LEASES, Params, expires_ms, queue_name
from topology.patterns.names import visibility_problem
from topology.patterns.pattern import ParamsError, Use

DEFAULT_EXCHANGE = "(default exchange)"


def title(params: Params) -> str:
    return params.exchange or DEFAULT_EXCHANGE


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


def recognize(found: Definitions) -> Sequence[Use]:
    """Queues with a TTL, a lease and a destination of their own, by the destination exchange."""
    by_exchange: dict[str, list[Queue]] = defaultdict(list)
    for queue in sorted(found.queues, key=lambda queue: queue.name):
        exchange = queue.dead_letter_exchange
        if exchange is not None and is_held_for(exchange, queue):
            by_exchange[exchange].append(queue)
    uses = (
        _use(found, exchange, sorted(queues, key=lambda queue: queue.name))
        for exchange, queues in sorted(by_exchange.items())
    )
    return [use for use in uses if use is not None]


def _use(found: Definitions, exchange: str, queues: Sequence[Queue]) -> Use | None:
    """With the lease that most of its queues keep."""
    keys = tuple(queue.dead_letter_routing_key or "" for queue in queues)
    waits = tuple(queue.message_ttl or timedelta(0) for queue in queues)
    if visibility_problem(exchange):
        return None
    best: Use | None = None
    for lease in LEASES:
        try:
            params = Params(exchange, keys, waits, lease)
        except ParamsError:
            continue
        odd = [
            f"The arguments of “{queue.name}” differ from the others."
            for queue, wait, key in zip(queues, waits, keys, strict=True)
            if queue.with_type() != hold_queue(params, wait, key)
        ]
        if len(odd) < len(queues) and (best is None or len(odd) < len(best.missing)):
            claims = frozenset(queue.identity for queue in queues)
            best = Use(KIND, title(params), params, claims, tuple(odd))
    return best
