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
from topology.delays import format_delay
from topology.message import ATTEMPT_HEADER, Route
from topology.patterns.delay_queues import params as parameters
from topology.patterns.delay_queues.params import SECOND, Params, queue_name
from topology.patterns.pattern import Pattern, refuse_unless_offered
from topology.patterns.texts import refuse
from topology.patterns.uses import find_missing


class DelayQueues(Pattern, parts=(parameters,)):
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

    def list_missing(self, params: Params, found: Definitions) -> tuple[str, ...]:
        """A TTL that differs from the name is a sentence of its own."""
        named = {queue_name(params.queue, delay): delay for delay in params.delays}
        untrue = {
            ("queue", name): f"The TTL of “{name}” is {format_delay(queue.message_ttl)}, which "
            "differs from the seconds in the name."
            for name, delay in named.items()
            if (queue := found.queue(name)) and queue.message_ttl not in (None, delay)
        }
        others = find_missing(self.definitions(params).without(untrue), found)
        is_there = found.queue(params.queue) is not None
        work = () if is_there else (f"The work queue “{params.queue}” is missing.",)
        return (*untrue.values(), *others, *work)

    def doubts(self, params: Params, found: Definitions) -> tuple[str, ...]:
        """A busy wait has one delay queue, and the broker cannot show what a consumer does."""
        if len(params.delays) != 1:
            return ()
        name = queue_name(params.queue, params.delays[0])
        return (
            f"“{name}” delays messages to “{params.queue}”, or both form a busy wait whose "
            f"consumer returns messages to “{name}” until they are due. RabbitMQ does not show "
            "which.",
        )

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
