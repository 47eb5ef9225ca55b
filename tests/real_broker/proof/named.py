"""Small cases by hand, and how the brokers and the walk agreed that they end."""

from __future__ import annotations

from typing import Any

from tests.brokers import Vhost
from tests.builders import address_of
from tests.real_broker.proof.case import Case
from tests.real_broker.proof.run import Run
from tests.topology.builders import a_queue
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.definitions import Definitions, Queue
from topology.routing.context import Consumer
from topology.routing.outcome import Ending

AT_LEAST_ONCE = {
    "type": "quorum",
    "x_dead_letter_strategy": "at-least-once",
    "x_overflow": "reject-publish",
}
ACKS, CRASHES = Consumer("acks"), Consumer("crashes")


def quorum(name: str, **arguments: Any) -> Queue:
    return a_queue(name, type="quorum", **arguments)


def case(*queues: Queue, headers: Any = None, **consumers: Consumer) -> Case:
    """Published to the first queue; every queue that is not consumed otherwise waits or holds."""
    return Case(Definitions.of(queues), "", queues[0].name, headers or {}, consumers=consumers)


def ends(played: Run) -> list[tuple[Ending, str]]:
    """How the only case ended, which the broker agreed to."""
    assert not played.disagreements, str(played.disagreements[0])
    (walked,) = played.walks.values()
    return sorted((outcome.ending, outcome.queue) for outcome in walked.outcomes)


def version_of(vhost: Vhost) -> tuple[int, ...]:
    with Management(address_of(vhost)) as management:
        return observe(management).version_tuple
