"""What tests of walks share: versions, a retry ring, short names."""

from __future__ import annotations

from datetime import timedelta

from tests.topology.builders import a_queue
from topology.definitions import Binding, Definitions, Exchange, Queue
from topology.routing.matching.index import Trie
from topology.routing.outcome import RouteOutcome, Walk

OLD, MIDDLE, NEW = (3, 10, 8), (4, 0, 5), (4, 3, 6)
AT_LEAST_ONCE = {
    "type": "quorum",
    "x_dead_letter_strategy": "at-least-once",
    "x_overflow": "reject-publish",
}
RETRY = Definitions.of(
    [a_queue("work", dlx="", key="wait"), a_queue("wait", ttl=100, dlx="", key="work")]
)


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def only(walked: Walk) -> RouteOutcome:
    (outcome,) = walked.outcomes
    return outcome


def of(*objects: Exchange | Queue | Binding) -> Definitions:
    return Definitions.of(objects)


def topic_matches(pattern: str, key: str) -> bool:
    """Whether a topic binding with this pattern takes the key."""
    trie = Trie[bool]()
    trie.add(pattern, True)
    return any(trie.match(key))
