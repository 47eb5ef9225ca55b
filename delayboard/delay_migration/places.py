"""The queues in which a topology's messages wait, the longest wait first.

What leaves one meanwhile comes into a later one, so that one pass meets each message once.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple, TypeAlias

from delayboard.delay_migration.due_times import (
    LONGEST_EXPIRATION,
    Due,
    Unmovable,
    due_in_delay_queue,
    due_in_level,
)
from topology.definitions import Definitions, Queue
from topology.message import Message
from topology.models import Topology
from topology.operations.ownership import Refusal
from topology.patterns.chain.params import Params as ChainParams
from topology.patterns.chain.params import chain_of
from topology.patterns.chain.pattern import delay_chain, retry_chain
from topology.patterns.delay_levels import params as levels
from topology.patterns.delay_levels.params import KIND as LEVELS
from topology.patterns.hold_queues.params import KIND as HOLDS
from topology.patterns.hold_queues.pattern import hold_queues
from topology.routing.matching.index import Index
from topology.routing.matching.match import Matched, match
from topology.structure.chain import DELAYED_RETRY

Read: TypeAlias = Callable[[Message, datetime, datetime | None], Due]

CHAIN_KINDS = (delay_chain.KIND, retry_chain.KIND)
REASONS = {
    "delayed_exchange": (
        "RabbitMQ cannot list the messages of the plugin. Change the publishers to the delay "
        "levels, and wait until the plugin has delivered its messages."
    ),
}
OTHERS = "Only messages of delay levels, hold queues and adopted chains can be migrated."


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
        return [_delay_queue(queue, index) for queue in queues]
    if source.kind in CHAIN_KINDS and not find_chain_obstacle(params):
        index = Index.of(found.without_taps().without_probes())
        return [_delay_queue(queue, index) for queue in reversed(chain_of(params).waiting)]
    raise Refusal(REASONS.get(source.kind, OTHERS))


def _level(params: levels.Params, level: int) -> Place:
    wait = params.unit * 2**level
    name = levels.level_name(params, level)
    # What has not been in the lower levels yet waits in each of them at most once.
    return Place(name, partial(due_in_level, params, wait, level), 2 * wait)


def _delay_queue(queue: Queue, index: Index) -> Place:
    """Its destination is the one queue that its exchange leads to: by its own key all messages, or
    each by the message's key.

    Raises Refusal where its own key leads to none, or to several.
    """
    exchange, key = queue.dead_letter_exchange or "", queue.dead_letter_routing_key
    # "" leads nowhere for any message.
    fixed = "" if key is None else _find_end(queue, match(index, exchange, [key], {}), key)

    def find_destination(message: Message) -> str:
        if fixed:
            return fixed
        found = match(index, exchange, [message.routing_key], message.headers)
        try:
            return _find_end(queue, found, message.routing_key)
        except Refusal as error:
            raise Unmovable(str(error)) from error

    ttl = queue.message_ttl
    read = partial(due_in_delay_queue, find_destination, ttl)
    return Place(queue.name, read, LONGEST_EXPIRATION if ttl is None else ttl)


def _find_end(queue: Queue, found: Matched, key: str) -> str:
    """Raises Refusal where that is none, or several."""
    if len(found.queues) == 1:
        return found.queues[0]
    raise Refusal(
        f"The messages of “{queue.name}” go to {len(found.queues)} queues. Delay levels deliver to "
        f"one queue only. Bind one queue to “{queue.dead_letter_exchange}” with the key “{key}”."
    )


def find_chain_obstacle(params: ChainParams) -> str:
    """Why no message of this chain of others can be moved; "" where one can."""
    chain = chain_of(params)
    if chain.is_native:
        return (
            f"RabbitMQ delays failed messages in “{chain.name}” itself ({DELAYED_RETRY}), where no "
            "program can take them. Wait until they were delivered."
        )
    for entry in chain.entries:
        if entry.failing:
            return (
                f"Dead letters of “{entry.failing[0]}” wait in “{entry.queue}”, and x-death counts "
                "their attempts. RabbitMQ 4 counts a moved message from 1 again. Wait until they "
                "returned."
            )
    for first, second in chain.links:
        return (
            f"Messages that leave “{first}” wait again in “{second}” (x-dead-letter-exchange), so "
            "that no queue shows when they are due. Wait until they were delivered."
        )
    return ""
