"""Quorum retry: a quorum queue that delays the redelivery of failed messages (RabbitMQ 4.3).

x-delayed-retry-min is the wait after the first failure, twice that after the second, and so on up
to x-delayed-retry-max. A message that failed more than x-delivery-limit times dead-letters into the
parking queue at least once. That queue has no delivery limit: with the default of 20, peeks would
delete its messages.
Source: rabbit_fifo.erl 4.3.5 and RabbitMQ documentation, "Quorum Queues", tried on 4.3.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from topology.definitions import Definitions
from topology.message import Route
from topology.patterns.pattern import Code, ParamsError, Pattern
from topology.patterns.quorum_retry import params as parameters
from topology.patterns.quorum_retry.params import Params
from topology.structure.copies import Copy, Reading, Tap

FIRST_VERSION = (4, 3)
ZERO = timedelta(0)
NO_DELAY = "A quorum queue delays only returned messages. You cannot delay a new message."


class QuorumRetry(Pattern, parts=(parameters,)):
    EXAMPLE = Params("orders")
    ATTEMPTS_COUNTED_BY = "queue"
    CHANGE_OBSTACLE = (
        "The message waits in its work queue, and RabbitMQ has no command that removes one message "
        "from a queue."
    )

    def obstacle(self, version: tuple[int, ...], params: Any = None) -> str:
        """An unknown version is treated as the newest."""
        if not version or version >= FIRST_VERSION:
            return ""
        return (
            f"RabbitMQ {'.'.join(map(str, version))} does not delay retries in quorum queues "
            "(4.3 and later). Use a retry ladder, or a retry pair for a single delay."
        )

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        """Straight to the work exchange. Raises ParamsError for any delay."""
        if delay > ZERO:
            raise ParamsError({"delay": NO_DELAY})
        return Route(params.name, params.routing_key)

    def achievable(self, params: Params, delay: timedelta) -> timedelta:
        return ZERO

    def waits(self, params: Params, delay: timedelta) -> Sequence[timedelta]:
        return ()

    def delays(self, params: Params) -> Sequence[timedelta]:
        return (ZERO,)

    def longest_retry(self, params: Params) -> timedelta:
        """The queue has it, and a policy may change it."""
        return ZERO

    def remarks(self, params: Params, found: Definitions) -> Sequence[str]:
        return (
            "Only first deliveries are observed. Retries wait inside the queue, which no tap "
            "can observe.",
        )

    def read(self, params: Params, copy: Copy) -> Reading | None:
        """A copy at the work exchange was just published: the broker's retries pass no exchange."""
        if (copy.exchange, copy.routing_key) != (params.name, params.routing_key):
            return None
        return Reading("publish", params.name, params.name, ZERO, 0)

    def taps(self, params: Params) -> Sequence[Tap]:
        return (Tap(params.name, params.routing_key, "exit"),)

    def code_values(self, params: Params) -> Mapping[str, Any]:
        back = (
            "channel.basic_nack(method.delivery_tag)  # waits, but is never parked"
            if params.retry == "returned"
            else "channel.basic_reject(method.delivery_tag, requeue=True)  # redelivered later"
        )
        return {"queue": params.name, "give_back": Code(back)}


quorum_retry = QuorumRetry()
