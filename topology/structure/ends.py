"""Where failed messages end: the one definition of a dead-letter queue.

A dead-letter queue gets failed messages of other queues (rejected, dropped by a full queue, over
the delivery limit), and none of them leaves it: no consumer reads it, and it is no delay queue. A
TTL without a dead-letter exchange is no delay: it deletes dead letters by age.

What consumers publish themselves no definition shows, so a name or failures that wait before they
arrive are only hints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from topology.content.text import count_text
from topology.definitions import Definitions, Queue, has_dead_letter_name
from topology.snapshot import Snapshot
from topology.structure.feeds import Feeds, find_feeds
from topology.structure.find_chains import find_chains

NOT_FED = "no queue dead-letters into this queue"
_ONLY_EXPIRED = "end of a delay: receives only expired messages"


@dataclass(frozen=True)
class Ends:
    """Which queues of a vhost are dead-letter queues, and why each other one is none.

    `feeds` is what dies into each queue, `delays` are the delay queues of all chains. Of those
    that only failed messages enter, and leave for other queues than they failed in, `failing`
    names the queues they failed in. `consumed` are the queues with consumers.
    """

    feeds: Feeds
    delays: AbstractSet[str]
    failing: Mapping[str, Sequence[str]]
    consumed: AbstractSet[str]

    def is_end(self, queue: Queue) -> bool:
        """Whether it is surely a dead-letter queue."""
        return not self.find_obstacle(queue)

    def find_obstacle(self, queue: Queue, *, is_destination: bool = False) -> str:
        """Why it is none, or does not show to be one; "" for a dead-letter queue.

        `is_destination`: a topology delivers its messages there.
        """
        if queue.type == "stream":
            return "stream: consumers remove no messages"
        if is_destination:
            return "work queue: destination of a topology"
        if queue.name in self.delays:
            return "delay queue: messages wait here and then move on"
        if queue.name in self.consumed:
            return "work queue: has consumers"
        into = self.feeds.get(queue.name)
        if not into:
            return NOT_FED
        return "" if any(feed.is_failure for feed in into) else _ONLY_EXPIRED

    def find_hint(self, queue: Queue, obstacle: str) -> str:
        """Why failed messages may end in it although it has this obstacle; "" for no reason."""
        if obstacle == NOT_FED and has_dead_letter_name(queue.name):
            return "the name is typical of queues for failed messages"
        if obstacle == _ONLY_EXPIRED and queue.dead_letter_exchange is None:
            into = [name for feed in self.feeds[queue.name] for name in feed.queues]
            failed = {name for delay in into for name in self.failing.get(delay, ())}
            if failed and self.failing.keys() >= set(into):
                return f"receives failed messages of {_list_names(failed)} after a delay"
        return ""

    def find_parking(self, found: Definitions, work: str) -> tuple[str, ...]:
        """The queues in which failed messages of this work queue end: what the broker
        dead-letters there, and what client libraries and people name after the queue.
        """
        named = (
            queue.name
            for queue in found.queues
            if has_dead_letter_name(queue.name, work) and queue.name not in self.delays
        )
        fed = (
            name
            for name, feeds in self.feeds.items()
            if any(feed.is_failure and work in feed.queues for feed in feeds)
            and (queue := found.queue(name)) is not None
            and self.is_end(queue)
        )
        return tuple(sorted({*named, *fed}))

    def explain(self, queue: Queue) -> str:
        """What makes it a dead-letter queue. Only for one."""
        into = self.feeds[queue.name]
        failed = {name for feed in into if feed.is_failure for name in feed.queues}
        return f"receives failed messages from {_list_names(failed)}, has no consumers"


def find_ends(snapshot: Snapshot) -> Ends:
    found, consumed = snapshot.definitions, snapshot.consumed
    chains = [chain for chain in find_chains(found, consumed) if not chain.is_native]
    delays = frozenset(name for chain in chains for name in chain.queues)
    failing = {
        name: chain.failing
        for chain in chains
        if chain.failing and not chain.schedules and not chain.retries
        for name in chain.queues
    }
    feeds = find_feeds(found, consumed, delays, snapshot.version_tuple)
    return Ends(feeds, delays, failing, consumed)


def _list_names(names: AbstractSet[str]) -> str:
    return f"“{min(names)}”" if len(names) == 1 else f"{count_text(len(names))} queues"
