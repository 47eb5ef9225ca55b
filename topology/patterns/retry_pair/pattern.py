"""Retry pair: two direct exchanges and two queues, each queue the other's dead-letter target.

A message that is rejected in the queue `<name>` waits in `<name>-retry` and returns after its TTL.
Both bindings have the same key, because a message keeps its key when it dead-letters: with each
queue's own name as key a rejected message is lost (tried, 3.10.8 to 4.3.6).
Source: seed 004 (F. Engelhardt, "Delayed requeuing with RabbitMQ").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from topology.definitions import Binding, Definitions, Queue
from topology.message import Route
from topology.patterns.pattern import Pattern
from topology.patterns.retry_pair import params as parameters
from topology.patterns.retry_pair.params import Params, retry_name
from topology.routing.matching.delayed_exchange import kind_of
from topology.routing.matching.index import Index


class RetryPair(Pattern, parts=(parameters,)):
    EXAMPLE = Params("orders")
    ATTEMPTS_COUNTED_BY = "x-death"
    CHANGE_OBSTACLE = ""

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        """Zero goes straight to the work exchange, anything else through the retry side."""
        exchange = retry_name(params) if delay > timedelta(0) else params.name
        return Route(exchange=exchange, routing_key=params.routing_key)

    def achievable(self, params: Params, delay: timedelta) -> timedelta:
        return params.delay if delay > timedelta(0) else timedelta(0)

    def delays(self, params: Params) -> Sequence[timedelta]:
        return (params.delay,)

    def probe_obstacle(self, params: Params, found: Definitions) -> str:
        return ""

    def probe_bindings(self, params: Params, probe: str) -> Sequence[Binding]:
        """A message keeps its key when it dies, so that a key of its own leads past the work."""
        retry = retry_name(params)
        return [Binding(retry, retry, probe), Binding(params.name, probe, probe)]

    def probe_route(self, params: Params, delay: timedelta, probe: str) -> Route:
        return Route(retry_name(params), probe)

    def doubts(self, params: Params, found: Definitions) -> tuple[str, ...]:
        work, retry = params.name, retry_name(params)
        losses = (
            _explain_loss(found, queue, to)
            for name, to in ((work, retry), (retry, work))
            if (queue := found.queue(name)) is not None
        )
        return tuple(filter(None, losses))

    def code_values(self, params: Params) -> Mapping[str, Any]:
        return {"queue": params.name}


retry_pair = RetryPair()


def _explain_loss(found: Definitions, queue: Queue, to: str) -> str:
    """What becomes of messages that die there with a key that no binding on their way takes."""
    key, exchange = queue.dead_letter_routing_key, found.exchange(queue.dead_letter_exchange or "")
    if key is None or exchange is None or kind_of(exchange) not in ("direct", "topic"):
        return ""
    index = Index(Definitions.of([exchange, *found.leads(exchange.name, to)]))
    if any(index.lead_on(exchange, [key], {}, ())):
        return ""
    return (
        f"“{queue.name}” dead-letters with the routing key “{key}”, but no binding from the "
        f"exchange “{exchange.name}” to the queue “{to}” matches. RabbitMQ drops these messages."
    )
