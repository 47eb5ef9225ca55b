"""One run: walk what the broker shows of itself, then let it go the same ways."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost
from tests.builders import address_of
from tests.real_broker.proof.case import Case
from tests.real_broker.proof.compare import Disagreement, disagreements, lateness
from tests.real_broker.proof.play import Players, Seen, declare, publish
from topology.broker.management.client import PATIENCE_SECONDS, Management
from topology.broker.management.observe import observe
from topology.routing.matching.index import Index
from topology.routing.outcome import Walk
from topology.routing.walk import stores_stuck_messages

GRACE_SECONDS = 15.0
QUIET_SECONDS = 1.0
# A quorum queue tells its numbers every five seconds (quorum_tick_interval).
QUORUM_TICK_SECONDS = 6.0


@dataclass(frozen=True)
class Run:
    """What was said and seen; `seconds` to declare, and to publish and await all ends.

    `most_late` is how many seconds after the said time the latest came that agreed.
    """

    version: str
    walks: Mapping[str, Walk]
    seen: Seen
    left: Mapping[str, int]
    disagreements: list[Disagreement]
    most_late: float
    seconds: tuple[float, float]


def run(node: PrivateNode, vhost: Vhost, cases: Mapping[str, Case]) -> Run:
    began = time.monotonic()
    declare(node, vhost, list(cases.values()))
    declared = time.monotonic()
    with Management(address_of(vhost), seconds=PATIENCE_SECONDS) as management:
        snapshot = observe(management)
        index = Index(snapshot.definitions)
        walks = {name: c.walked(index, snapshot.version_tuple) for name, c in cases.items()}
        seen = Seen()
        consumers = {q: found for case in cases.values() for q, found in case.consumers.items()}
        with Players(vhost, consumers, seen):
            publish(vhost, cases, seen)
            _await_ends(walks, seen)
        left = _await_left(management, cases.values(), walks)
    found = disagreements(cases, walks, seen, left)
    return Run(
        version=snapshot.version,
        walks=walks,
        seen=seen,
        left=left,
        disagreements=found,
        most_late=max((late for n in cases for late in lateness(n, walks[n], seen)), default=0.0),
        seconds=(declared - began, time.monotonic() - declared),
    )


def _await_ends(walks: Mapping[str, Walk], seen: Seen) -> None:
    """Until all have come that should, all are over that should end elsewhere, and it is quiet."""
    wanted = sum(len(walked.delivered) for walked in walks.values())
    latest = max(o.after.total_seconds() for walked in walks.values() for o in walked.outcomes)
    over = time.monotonic() + latest + QUIET_SECONDS
    deadline = over + GRACE_SECONDS
    while (now := time.monotonic()) < deadline:
        came = sum(len(taken) for taken in seen.taken.values())
        if now > over and came >= wanted and now - seen.last_at > QUIET_SECONDS:
            return
        time.sleep(0.05)


def _await_left(
    management: Management, cases: Iterable[Case], walks: Mapping[str, Walk]
) -> dict[str, int]:
    """What the queues hold, once the statistics show what the walk said; or what they show last.

    They are looked at when every queue has had the time to tell of the last change. Where nothing
    is dead-lettered at least once, nothing can be left but what did not come.
    """
    held = Counter(o.queue for w in walks.values() for o in w.outcomes if o.ending == "stuck")
    if not any(stores_stuck_messages(queue) for case in cases for queue in case.definitions.queues):
        return {}
    time.sleep(QUORUM_TICK_SECONDS)
    deadline = time.monotonic() + GRACE_SECONDS
    while True:
        left = {queue["name"]: queue.get("messages") for queue in management.queues()}
        found = {name: number for name, number in left.items() if number}
        if (found == held and None not in left.values()) or time.monotonic() > deadline:
            return found
        time.sleep(0.2)
