"""What does exist in a broker's vhost, seen at one moment, with its live numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from topology.definitions import Arguments, Definitions, Queue

LONGEST_PART = 9
# Seconds for which an expired message may still be on its way to the next queue.
TRANSIT_SECONDS = 0.1


@dataclass(frozen=True)
class QueueNumbers:
    """Live numbers of one queue; None when the broker did not report them.

    The broker counts every `statistics interval` (5 s by default), so these are up to that much
    older than the snapshot. Rates are messages per second. `published` counts all publishes since
    RabbitMQ began to count; it and `publish_rate` do not include messages from other queues.
    `consumed` counts all deliveries to consumers since then, without redeliveries, and `acked` the
    messages that they acknowledged. `reductions` counts the work of the queue's process, and
    `still_ms` is how long there was none. `probes` are probes of Delayboard that should have left
    it.
    """

    messages: int | None = None
    ready: int | None = None
    unacked: int | None = None
    consumers: int | None = None
    publish_rate: float | None = None
    deliver_rate: float | None = None
    ack_rate: float | None = None
    redeliver_rate: float | None = None
    head_at: datetime | None = None
    state: str = ""
    published: int | None = None
    consumed: int | None = None
    acked: int | None = None
    reductions: int | None = None
    still_ms: int = 0
    probes: int = 0


@dataclass(frozen=True)
class Report:
    """What a live rule has to report of a queue, where RabbitMQ's numbers do not show it.

    `number` is its evidence, such as how many messages it concerns.
    """

    rule: str
    queue: str
    number: int
    sentence: str


@dataclass(frozen=True)
class Snapshot:
    """A vhost at `taken_at` (UTC).

    `definitions` has policies folded into the arguments: the effective values, not only the
    declared ones, which are in `declared`. `numbers` is by queue name. `policies` and
    `operator_policies` name those of each queue; `policy_arguments` are the arguments that both
    set, before the queue's own apply. `doubts` are sentences on what was not visible. `version` is
    the broker's, such as "3.10.8". `earlier` are the numbers at `earlier_at`, at most two minutes
    before; None when nothing was read then. `reports` are from the list of scheduled messages,
    from recorders and from peeks. `nodes` are those of the cluster that the answers name: one
    without a queue is missing if the account may not monitor. Of these `down` do not run, and
    `partitioned` report a partition.
    `intercepted` are the queues whose messages interceptions of Delayboard take, by the names of
    these.
    """

    version: str
    taken_at: datetime
    definitions: Definitions
    declared: Definitions
    numbers: Mapping[str, QueueNumbers] = field(default_factory=dict)
    exchange_rates: Mapping[str, float] = field(default_factory=dict)
    policies: Mapping[str, str] = field(default_factory=dict)
    operator_policies: Mapping[str, str] = field(default_factory=dict)
    policy_arguments: Mapping[str, Arguments] = field(default_factory=dict)
    node: str = ""
    nodes: frozenset[str] = frozenset()
    down: frozenset[str] = frozenset()
    partitioned: frozenset[str] = frozenset()
    cluster: str = ""
    alarms: tuple[str, ...] = ()
    poll_seconds: float = 0.0
    doubts: tuple[str, ...] = ()
    earlier: Mapping[str, QueueNumbers] = field(default_factory=dict)
    earlier_at: datetime | None = None
    reports: tuple[Report, ...] = ()
    intercepted: Mapping[str, str] = field(default_factory=dict)

    @property
    def version_tuple(self) -> tuple[int, ...]:
        return version_numbers(self.version)

    def without_interceptions(self) -> Snapshot:
        """With the bindings of intercepted queues as they were before, and will be again."""
        left, intercepted = self.definitions.without_interceptions(self.intercepted)
        declared, _ = self.declared.without_interceptions(self.intercepted)
        return replace(self, definitions=left, declared=declared, intercepted=intercepted)

    @property
    def has_trend(self) -> bool:
        """Whether `earlier` are numbers of a minute ago or more."""
        at = self.earlier_at
        return at is not None and self.taken_at - at >= timedelta(minutes=1)

    def trend_of(self, queue: str) -> QueueNumbers | None:
        """The numbers of a minute ago or more, None where they are not known."""
        return self.earlier.get(queue) if self.has_trend else None

    def count_waiting(self, queue: Queue) -> tuple[int | None, datetime | None]:
        """How many messages it holds, None when unknown, and when the last of them expires."""
        ttl = queue.message_ttl
        numbers = self.numbers.get(queue.name)
        return (
            numbers.messages if numbers else None,
            self.taken_at + ttl if ttl is not None else None,
        )

    def sum_messages(self, queues: Collection[str]) -> int | None:
        """How many messages they hold; None when one is not known, and for no queue."""
        counts = [self.numbers[name].messages if name in self.numbers else None for name in queues]
        known = [count for count in counts if count is not None]
        return sum(known) if counts and len(known) == len(counts) else None

    @property
    def consumed(self) -> frozenset[str]:
        """The queues that have consumers."""
        return frozenset(name for name, numbers in self.numbers.items() if numbers.consumers)


def version_numbers(version: str) -> tuple[int, ...]:
    """A version cut at the first part that is no number: "4.1.0-rc.1" is (4, 1, 0).

    Python reads no number of thousands of digits, and no version has one.
    """
    numbers: list[int] = []
    for part in version.split("-")[0].split("."):
        if not part.isdecimal() or len(part) > LONGEST_PART:
            break
        numbers.append(int(part))
    return tuple(numbers)


def count_stuck_in(queue: Queue, numbers: QueueNumbers | None) -> int | None:
    """Messages past their time that the queue keeps, because nobody behind it takes them.

    Only at-least-once dead-lettering keeps them, and counts them as neither ready nor
    unacked. None where that cannot be, or where a number is not known. Probes are no messages.
    """
    if queue.arguments.text("x-dead-letter-strategy") != "at-least-once" or numbers is None:
        return None
    if numbers.messages is None or numbers.ready is None or numbers.unacked is None:
        return None
    return max(0, numbers.messages - numbers.ready - numbers.unacked - numbers.probes)


def has_stuck(queue: Queue, numbers: QueueNumbers | None) -> bool:
    """More are held than can be on their way at this moment.

    What is on its way counts as held too. It is what expires in TRANSIT_SECONDS: of what is
    published here so much, and, as the broker does not count what other queues send here, of
    what waits here as much as a steady flow would have left (measured: 2 to 9 at 240 messages
    per second; but all of a burst that expires at one moment looks held for one poll).
    """
    count = count_stuck_in(queue, numbers)
    if not count or numbers is None:
        return False
    ttl_ms = queue.message_ttl_ms
    flow = 1000 * (numbers.ready or 0) / ttl_ms if ttl_ms else 0.0
    return count > TRANSIT_SECONDS * max(flow, numbers.publish_rate or 0.0)
