"""The queues in which a topology's messages wait, the longest wait first.

What leaves one meanwhile comes into a later one, so that one pass meets each message once.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, TypeAlias

from delayboard.delay_migration.due_times import Due, due_in_hold_queue, due_in_level
from topology.definitions import Definitions, Queue
from topology.message import Message
from topology.models import Topology
from topology.operations.ownership import Refusal
from topology.patterns.delay_levels import params as levels
from topology.patterns.delay_levels.params import KIND as LEVELS
from topology.patterns.hold_queues.params import KIND as HOLDS
from topology.patterns.hold_queues.pattern import hold_queues
from topology.routing.matching.index import Index
from topology.routing.matching.match import match

Read: TypeAlias = Callable[[Message, datetime, datetime | None], Due]

REASONS = {
    "delayed_exchange": (
        "RabbitMQ cannot list the messages of the plugin. Change the publishers to the delay "
        "levels, and wait until the plugin has delivered its messages."
    ),
}
OTHERS = "Only messages of delay levels and hold queues can be migrated."


class Place(NamedTuple):
    """A queue to empty, and what reads when and for whom its messages are due: from the message,
    the moment, and when it was recorded as due. None of them waits longer than `longest_wait`, in
    all queues together.
    """

    queue: str
    read: Read
    longest_wait: timedelta


def list_places(source: Topology, found: Definitions) -> list[Place]:
    """Raises Refusal for a topology whose messages cannot be moved."""
    params = source.parsed
    if source.kind == LEVELS:
        return [_level(params, level) for level in reversed(range(params.levels))]
    if source.kind == HOLDS:
        # The hold queue of probes is there for a while after they are disabled.
        found = found.without_taps().without_probes()
        index = Index.of(found)
        queues = reversed(hold_queues.members(params, found))
        return [_hold_queue(queue, index) for queue in queues]
    raise Refusal(REASONS.get(source.kind, OTHERS))


def _level(params: levels.Params, level: int) -> Place:
    wait = params.unit * 2**level
    name = levels.level_name(params, level)
    # What has not been in the lower levels yet waits in each of them at most once.
    return Place(name, partial(due_in_level, params, wait, level), 2 * wait)


def _hold_queue(queue: Queue, index: Index) -> Place:
    """Its destination is the one queue that its exchange and key lead to.

    Raises Refusal where that is none, or several.
    """
    exchange, key = queue.dead_letter_exchange or "", queue.dead_letter_routing_key or ""
    reached = match(index, exchange, [key], {}).queues
    if len(reached) != 1:
        raise Refusal(
            f"The messages of “{queue.name}” go to {len(reached)} queues. Delay levels deliver to "
            f"one queue only. Bind one queue to “{exchange}” with the key “{key}”."
        )
    wait = timedelta(milliseconds=queue.message_ttl_ms or 0)
    return Place(queue.name, partial(due_in_hold_queue, reached[0], wait), wait)
