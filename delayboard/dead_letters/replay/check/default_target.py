"""The default target of a replay, from the deaths of a message: pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from topology.clients.describe import Description
from topology.deaths import Death, History
from topology.definitions import Definitions
from topology.routing.matching.index import Index
from topology.routing.walk import walk


@dataclass(frozen=True)
class Target:
    """Where to publish a replay; `why` is the reason, in words."""

    exchange: str
    routing_key: str
    why: str


def find_default_target(
    history: History,
    found: Definitions | Index,
    delay_queues: Collection[str],
    read: Description | None = None,
) -> Target | None:
    """Return exchange and key of the earliest death that was not an expiry; None without one.

    If all deaths are expiries, what the client library wrote counts (`read`), and without that the
    earliest in a queue that is not a known delay queue. If the route from that exchange reaches any
    queue besides the one where the message died, the target is that queue, through the default
    exchange: a fanout must not send copies to queues that already got theirs.
    """
    if history.first_failure is None and read is not None and read.is_of_failure:
        return find_stated_target(read, Index.of(found))
    death = find_first_death(history, delay_queues)
    return None if death is None else find_target(death, Index.of(found))


def find_first_death(history: History, delay_queues: Collection[str]) -> Death | None:
    """Return the death that shows where a message came from."""
    return history.first_failure or next(
        (death for death in history.deaths if death.queue not in delay_queues), None
    )


def find_stated_target(read: Description, index: Index) -> Target | None:
    """Where the message came from by what its client library wrote; None where that is unknown.

    An exchange and key without a queue count only if they lead to one queue: of several it cannot
    be known in which of them it failed.
    """
    exchange, key = read.exchange or "", read.routing_key or ""
    if read.exchange is not None or (read.routing_key is not None and not read.queue):
        walked = walk(index, exchange, key)
        queues = {outcome.hops[0].queue for outcome in walked.outcomes if outcome.hops}
        if queues == {read.queue} or (not read.queue and len(queues) == 1):
            return Target(exchange, key, f"where it was published, as {read.library} recorded it")
    if not read.queue or read.queue not in index.queues:
        return None
    return Target(
        "", read.queue, f"straight to {read.queue}, where it failed, as {read.library} recorded it"
    )


def find_target(death: Death, index: Index) -> Target | None:
    """Return the default target after this death; None if its queue no longer exists."""
    walked = walk(index, death.exchange, death.routing_key)
    if {outcome.hops[0].queue for outcome in walked.outcomes if outcome.hops} == {death.queue}:
        why = f"where it was published before it was first dead-lettered in {death.queue}"
        return Target(death.exchange, death.routing_key, why)
    if death.queue not in index.queues:
        return None
    return Target("", death.queue, f"straight to {death.queue}, where it was first dead-lettered")
