"""What to watch on a new broker: the proposed dead-letter queues, and what a person chose."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from delayboard.dead_letters.parked.park_request import ParkError, set_automatic_parking
from delayboard.dead_letters.queues.candidates import Candidate, candidates
from delayboard.dead_letters.queues.confirmed import Undecided, decide, destinations
from delayboard.models import DeadLetterQueue
from topology.models import Broker
from topology.snapshot import Snapshot

# More are decided on the page Dead letters, one by one.
MOST = 50


def propose_queues(broker: Broker, snapshot: Snapshot) -> Sequence[Candidate]:
    """Probable dead-letter queues without a decision, by name or structure; MOST at most."""
    decided = set(DeadLetterQueue.objects.filter(broker=broker).values_list("queue", flat=True))
    found = candidates(snapshot, destinations(broker, snapshot))
    probable = (one for one in found if one.is_likely or one.is_possible)
    return [one for one in probable if one.queue not in decided][:MOST]


def watch_queues(
    user: Any, broker: Broker, snapshot: Snapshot, marked: Collection[str], parked: Collection[str]
) -> Sequence[str]:
    """Mark the queues as dead-letter queues, and park those of `parked` automatically.

    Returns a sentence for each queue for which that is not possible, or needs attention.
    """
    problems = []
    for name in sorted({*marked, *parked})[:MOST]:
        try:
            decide(user, broker, name, snapshot, is_confirmed=True)
            if name in parked:
                warning = set_automatic_parking(user, broker, name, snapshot, on=True)
                problems += [f"{name[:100]}: {warning}"] if warning else []
        except (Undecided, ParkError) as problem:
            problems.append(f"{name[:100]}: {problem}")
    return problems
