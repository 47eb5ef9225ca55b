"""Delay queues: one queue for each delay beside a work queue, for consumers that publish again.

`<queue>_dlq_<seconds>` dead-letters through the default exchange into `<queue>`. A message that is
published again begins a new x-death from RabbitMQ 4.0 on (tried: 15 laps give a count of 15 on
3.10.8, and 1 on 4.0.5 and 4.3.6).
Source: seed 003 ("Delayed processing in RabbitMQ with Dead Letter Exchanges").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from topology.definitions import Definitions
from topology.message import ATTEMPT_HEADER, Route
from topology.patterns.delay_queues import params as parameters
from topology.patterns.delay_queues import recognize as recognition
from topology.patterns.delay_queues.params import SECOND, Params, queue_name
from topology.patterns.pattern import Pattern, refuse_unless_offered
from topology.patterns.texts import refuse


class DelayQueues(Pattern, parts=(parameters, recognition)):
    EXAMPLE = Params("orders", (10 * SECOND, 60 * SECOND, 300 * SECOND))
    ATTEMPTS_COUNTED_BY = "consumer"
    CHANGE_OBSTACLE = ""

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        """Zero goes straight into the work queue, a delay on offer into its queue."""
        refuse({"target": super().target_problem(params, target, Definitions())})
        if delay <= timedelta(0):
            return Route("", params.queue)
        refuse_unless_offered(delay, params.delays)
        return Route("", queue_name(params.queue, delay))

    def delays(self, params: Params) -> Sequence[timedelta]:
        return params.delays

    def targets(self, params: Params) -> Sequence[str]:
        return (params.queue,)

    def target_problem(self, params: Params, target: str, found: Definitions) -> str:
        if problem := super().target_problem(params, target, found):
            return problem
        if found.queue(target) is None:
            return (
                f"The queue “{target}” does not exist, so RabbitMQ would drop the message "
                "after its delay. Create the queue first."
            )
        return ""

    def remarks(self, params: Params, found: Definitions) -> Sequence[str]:
        no_tap = "A tap cannot record this topology, because no tap observes the default exchange."
        if found.queue(params.queue) is not None:
            return (no_tap,)
        return (
            f"The work queue “{params.queue}” does not exist, so RabbitMQ drops messages after "
            "their delay. Create the queue.",
            no_tap,
        )

    def code_values(self, params: Params) -> Mapping[str, Any]:
        return {
            "queue": params.queue,
            "seconds": [delay // SECOND for delay in params.delays],
            "attempt": ATTEMPT_HEADER,
        }


delay_queues = DelayQueues()
