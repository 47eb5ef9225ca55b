"""Busy wait: messages pass one delay queue repeatedly until a header says that they are due.

The TTL of the delay queue is the greatest common divisor of the delays. Its messages dead-letter
through the default exchange into the busy-waiting queue, whose consumer is Delayboard's forwarder
(`topology.transfer.forwarder`). The forwarder publishes without x-death, so that no rule against
cycles drops a message.
Source: seed 003, second half ("Delayed processing in RabbitMQ with Dead Letter Exchanges").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from topology.deaths import newest_death
from topology.definitions import MAXIMUM_TTL_MS, Definitions
from topology.delays import format_delay, milliseconds
from topology.message import ATTEMPT_HEADER, PUBLISHED_AT_HEADER, Forwarder, Route
from topology.patterns.busy_wait import params as parameters
from topology.patterns.busy_wait.params import (
    WAITED_HEADER,
    Params,
    delay_name,
    laps_of,
    wait_name,
)
from topology.patterns.pattern import ParamsError, Pattern
from topology.patterns.texts import refuse
from topology.structure.copies import Copy, Reading

LONGEST = timedelta(milliseconds=MAXIMUM_TTL_MS)


class BusyWait(Pattern, parts=(parameters,)):
    EXAMPLE = Params("webhooks", tuple(timedelta(minutes=number) for number in (1, 2, 4, 8)))
    ATTEMPTS_COUNTED_BY = "consumer"
    CHANGE_OBSTACLE = (
        "A consumer outside of Delayboard forwards these messages. It can check each message "
        "when it is due."
    )

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        """Zero goes straight to the processing queue, anything else into the delay queue."""
        refuse({"target": super().target_problem(params, target, Definitions())})
        if delay <= timedelta(0):
            return Route("", params.queue)
        if delay > self.longest(params):
            raise ParamsError({"delay": "The delay can be at most 3650 days."})
        due_after = self.achievable(params, delay)
        return Route("", delay_name(params), due_header=params.due_header, due_after=due_after)

    def achievable(self, params: Params, delay: timedelta) -> timedelta:
        """Whole laps."""
        return laps_of(params, delay) * params.lap

    def longest(self, params: Params) -> timedelta:
        return LONGEST // params.lap * params.lap

    def longest_retry(self, params: Params) -> timedelta:
        """The longest delay is years."""
        return timedelta(0)

    def targets(self, params: Params) -> Sequence[str]:
        return (params.queue,)

    def list_missing(self, params: Params, found: Definitions) -> tuple[str, ...]:
        missing = super().list_missing(params, found)
        if found.queue(params.queue):
            return missing
        return (*missing, f"The processing queue “{params.queue}” is missing.")

    def target_problem(self, params: Params, target: str, found: Definitions) -> str:
        if problem := super().target_problem(params, target, found):
            return problem
        return "" if found.queue(params.queue) else _no_queue(params)

    def trials(self, params: Params, found: Definitions) -> Sequence[tuple[timedelta, str, str]]:
        return [(delay, params.queue, params.queue) for delay in params.delays]

    def remarks(self, params: Params, found: Definitions) -> Sequence[str]:
        lap = format_delay(params.lap)
        sentences = [] if found.queue(params.queue) else [_no_queue(params)]
        sentences.append(f"A lap takes {lap}. Delayboard rounds delays up to multiples of it.")
        sentences.append(f"Each waiting message costs one publish every {lap}.")
        sentences.append(
            "A tap cannot record this topology, because no tap observes the default exchange. "
            "Enable the firehose to record it."
        )
        return sentences

    def read(self, params: Params, copy: Copy) -> Reading | None:
        """The first publish into the delay queue is an entry, the forwarder's publish to the
        processing queue an exit; the laps between them are neither.

        The forwarder writes into WAITED_HEADER the due time for which it forwarded a message; a
        consumer that publishes it again with another due time begins a new trip. The delay is the
        time from the entry (if unknown, the publisher's timestamp, else 0) to the due time. An
        entry without a due time is not read; an exit without one counts as a lap.
        """
        queues = (delay_name(params), params.queue)
        if copy.exchange or copy.routing_key not in queues:
            return None
        due = copy.headers.get(params.due_header)
        is_waited = due is not None and copy.headers.get(WAITED_HEADER) == due
        if copy.routing_key == params.queue:
            if is_waited:
                waited = _delay(params, copy.headers, 0) or params.lap
                return Reading("exit", params.queue, wait_name(params), waited, _attempt(copy))
            return Reading("publish", params.queue, "", timedelta(0), 0, *_death(copy))
        # The stamp stays on what a consumer publishes once more, and is exact on what is new.
        is_new = _attempt(copy) == 1 and PUBLISHED_AT_HEADER in copy.headers
        delay = _delay(params, copy.headers, 0 if is_new else copy.at_ms)
        if is_waited or delay is None:
            return None
        return Reading(
            "entry", params.queue, delay_name(params), delay, _attempt(copy), *_death(copy)
        )

    def forwarders(self, params: Params) -> Sequence[Forwarder]:
        return [Forwarder(wait_name(params), params.queue, delay_name(params), params.due_header)]

    def code_values(self, params: Params) -> Mapping[str, Any]:
        return {
            "queue": params.queue,
            "delay_queue": delay_name(params),
            "delays_ms": [milliseconds(delay) for delay in params.delays],
            "due_header": params.due_header,
            "attempt": ATTEMPT_HEADER,
        }


busy_wait = BusyWait()


def _no_queue(params: Params) -> str:
    return (
        f"The queue “{params.queue}” does not exist, so due messages remain in "
        f"{wait_name(params)}. Create the queue."
    )


def _death(copy: Copy) -> tuple[str, str]:
    return newest_death(copy.headers) or ("", "")


def _attempt(copy: Copy) -> int:
    """The attempt by the consumer's own count of failures; 1 where it counts none."""
    count = copy.headers.get(ATTEMPT_HEADER)
    return count if isinstance(count, int) and count > 0 else 1


def _delay(params: Params, headers: Mapping[str, Any], at_ms: int) -> timedelta | None:
    """The time from the publish to the due time in whole laps; None when unknown."""
    due, published = headers.get(params.due_header), at_ms or headers.get(PUBLISHED_AT_HEADER, 0)
    if not isinstance(due, int) or not isinstance(published, int):
        return None
    ms = due - published
    if not 0 <= ms <= MAXIMUM_TTL_MS:
        return None
    return busy_wait.achievable(params, timedelta(milliseconds=ms))
