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

from topology.deaths import newest_death, read_history
from topology.definitions import Binding, Definitions
from topology.message import Route
from topology.patterns.pattern import Pattern
from topology.patterns.retry_pair import params as parameters
from topology.patterns.retry_pair import recognize as recognition
from topology.patterns.retry_pair.params import Params, retry_name
from topology.structure.copies import Copy, Reading, Tap


class RetryPair(Pattern, parts=(parameters, recognition)):
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

    def read(self, params: Params, copy: Copy) -> Reading | None:
        """A copy on the retry exchange is an entry, one on the work exchange an exit or a publish.

        The x-death count of `expired` in the retry queue numbers the trips: n before the entry
        of trip n + 1, n on the exit of trip n.
        """
        work, retry = params.name, retry_name(params)
        if copy.exchange not in (work, retry) or copy.routing_key != params.routing_key:
            return None
        trips = read_history(copy.headers).count(retry, "expired")
        last = newest_death(copy.headers)
        if copy.exchange == retry:
            queue, reason = last if last and last[0] != retry else ("", "")
            return Reading("entry", work, retry, params.delay, trips + 1, queue, reason)
        if last == (retry, "expired"):
            return Reading("exit", work, work, params.delay, trips, retry, "expired")
        return Reading("publish", work, work, timedelta(0), 0)

    def taps(self, params: Params) -> Sequence[Tap]:
        return (
            Tap(retry_name(params), params.routing_key, "entry"),
            Tap(params.name, params.routing_key, "exit"),
        )

    def code_values(self, params: Params) -> Mapping[str, Any]:
        return {"queue": params.name}


retry_pair = RetryPair()
