"""Retry ladder: each retry waits longer than the one before, and the last failure is parked.

A message that is rejected in the queue `<name>` dead-letters into the exchange `<name>-ladder` with
its key: `<key>` leads to rung 1, `<key>.try.k` to rung k+1 and `<key>.try.n` to the parking queue.
Rung k dead-letters into the exchange `<name>` with the key `<key>.try.k`. The alternate exchange
takes every other key to rung 1.
Source: rabbitmq.md 1.3, tried on 3.10.8, 4.0.5 and 4.3.6. Both exchanges are direct with exact
bindings: `#.try.1` of a topic exchange would also match a plain key that ends so. The work queue is
classic: the cycle rule does not count a quorum queue's delivery limit as a rejection, and would
drop the message. The plain key has its own binding, because a tap on that key would hide it from
the alternate exchange.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from topology.message import Route
from topology.patterns.pattern import Pattern, too_long
from topology.patterns.retry_ladder import params as parameters
from topology.patterns.retry_ladder.params import (
    Params,
    ladder_name,
    tried_key,
)

ZERO = timedelta(0)


class RetryLadder(Pattern, parts=(parameters,)):
    EXAMPLE = Params("orders")
    ATTEMPTS_COUNTED_BY = "x-death"
    CHANGE_OBSTACLE = ""

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        """Zero goes straight to the work exchange, anything else to the first rung that waits so
        long.

        Raises ParamsError for a delay over the longest.
        """
        if delay <= ZERO:
            return Route(params.name, tried_key(params, 0))
        return Route(ladder_name(params), tried_key(params, rung_for(params, delay) - 1))

    def achievable(self, params: Params, delay: timedelta) -> timedelta:
        return params.delays[rung_for(params, delay) - 1] if delay > ZERO else ZERO

    def delays(self, params: Params) -> Sequence[timedelta]:
        return sorted(set(params.delays))

    def rounds(self, params: Params) -> int:
        return len(params.delays)

    def longest_retry(self, params: Params) -> timedelta:
        return sum(params.delays, timedelta(0))

    def code_values(self, params: Params) -> Mapping[str, Any]:
        return {"queue": params.name}


retry_ladder = RetryLadder()


def rung_for(params: Params, delay: timedelta) -> int:
    """The lowest rung that waits at least so long. Raises ParamsError when none does."""
    for rung, wait in enumerate(params.delays, start=1):
        if wait >= delay:
            return rung
    raise too_long("this ladder", max(params.delays))
