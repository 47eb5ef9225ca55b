"""Delay queues in a vhost, found by structure and by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta

from topology.definitions import Definitions, Queue
from topology.delays import format_delay, milliseconds
from topology.patterns.delay_queues.params import (
    KIND,
    Params,
    definitions,
    split_name,
)
from topology.patterns.pattern import ParamsError, Use
from topology.patterns.uses import find_missing


def recognize(found: Definitions) -> Sequence[Use]:
    """Queues `<queue>_dlq_<seconds>` with a TTL that die into `<queue>` through the default
    exchange, by the queue that they are for."""
    delayed: dict[str, list[Queue]] = defaultdict(list)
    for queue in found.dying_into(""):
        named, work = split_name(queue.name), queue.dead_letter_routing_key
        if queue.message_ttl_ms and named and work == named[0]:
            delayed[work].append(queue)
    uses = (_use(work, queues, found) for work, queues in sorted(delayed.items()))
    return [use for use in uses if use is not None]


def _doubt(work: str, queues: Sequence[Queue]) -> tuple[str, ...]:
    """A busy wait has one delay queue, and the broker cannot show what a consumer does."""
    if len(queues) != 1:
        return ()
    name = queues[0].name
    return (
        f"“{name}” delays messages to “{work}”, or both form a busy wait whose consumer returns "
        f"messages to “{name}” until they are due. RabbitMQ does not show which.",
    )


def _use(work: str, queues: Sequence[Queue], found: Definitions) -> Use | None:
    """With the delays in the names; a different TTL is reported."""
    named = {queue.name: split_name(queue.name) for queue in queues}
    try:
        params = Params(work, tuple(split[1] for split in named.values() if split))
    except ParamsError:
        return None
    untrue = [queue for queue in queues if not _is_true(queue)]
    other = definitions(params).without(queue.identity for queue in untrue)
    missing = [*(_explain_other_ttl(queue) for queue in untrue), *find_missing(other, found)]
    if found.queue(work) is None:
        missing.append(f"The work queue “{work}” is missing.")
    claims = frozenset(queue.identity for queue in queues)
    return Use(KIND, params.queue, params, claims, tuple(missing), _doubt(work, queues))


def _is_true(queue: Queue) -> bool:
    named = split_name(queue.name)
    return named is not None and queue.message_ttl_ms == milliseconds(named[1])


def _explain_other_ttl(queue: Queue) -> str:
    waits = format_delay(queue.message_ttl or timedelta(0))
    return f"The TTL of “{queue.name}” is {waits}, which differs from the seconds in the name."
