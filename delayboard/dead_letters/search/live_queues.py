"""Which messages in the live dead-letter queues of a broker match a query: free peeks only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic

from analytics.search.content import read
from analytics.search.query import Query
from delayboard.dead_letters.queues import peek
from delayboard.dead_letters.queues.candidates import Candidate
from delayboard.dead_letters.queues.peek import PeekedMessage
from delayboard.models import DeadLetterQueue
from topology.broker.errors import BrokerError
from topology.clients.conventions import Convention
from topology.content.text import fold
from topology.models import Broker
from topology.models.client_convention import read_conventions
from topology.redaction import Redaction
from topology.snapshot import Snapshot

SECONDS = 3.0
OUT_OF_TIME = "The search ended after 3 seconds. Enter a part of the name of this queue."


@dataclass(frozen=True)
class Match:
    """A message that matches; its position in the queue begins at 1."""

    position: int
    message: PeekedMessage


@dataclass(frozen=True)
class SearchedQueue:
    """`problem` says why a queue was not searched; `more`: messages after `read_count` were not."""

    name: str
    read_count: int = 0
    more: bool = False
    matches: tuple[Match, ...] = ()
    problem: str = ""


def select_queues(
    broker: Broker, found: Iterable[Candidate], snapshot: Snapshot, name: str
) -> tuple[list[str], list[str]]:
    """The dead-letter queues with messages whose names contain `name`: free to peek, or not."""
    decided = dict(
        DeadLetterQueue.objects.filter(broker=broker).values_list("queue", "is_confirmed")
    )
    free: list[str] = []
    costly: list[str] = []
    for one in found:
        queue = snapshot.definitions.queue(one.queue)
        is_meant = decided.get(one.queue, one.is_likely or one.is_possible)
        if queue is None or not is_meant or not one.numbers.messages:
            continue
        if fold(name) in fold(one.queue):
            (free if peek.is_free(queue, snapshot) else costly).append(one.queue)
    return free, costly


def search_queues(
    broker: Broker,
    snapshot: Snapshot,
    names: Sequence[str],
    query: Query,
    rules: Redaction,
) -> list[SearchedQueue]:
    """Peek at one queue after the other; what takes too long, or fails, has a problem instead."""
    until = monotonic() + SECONDS
    return [
        _search(broker, snapshot, name, query, rules)
        if monotonic() < until
        else SearchedQueue(name, problem=OUT_OF_TIME)
        for name in names
    ]


def _search(
    broker: Broker, snapshot: Snapshot, name: str, query: Query, rules: Redaction
) -> SearchedQueue:
    queue = snapshot.definitions.queue(name)
    assert queue is not None
    try:
        seen = peek.peek_queue(broker, queue, snapshot)
    except BrokerError as error:
        return SearchedQueue(name, problem=str(error))
    own = read_conventions(broker)
    matches = (
        Match(position, one)
        for position, one in enumerate(seen.peeked_messages, 1)
        if _fits(one, query, rules, own)
    )
    return SearchedQueue(name, len(seen.peeked_messages), seen.more, tuple(matches))


def _fits(one: PeekedMessage, query: Query, rules: Redaction, own: Sequence[Convention]) -> bool:
    """Whether what the rules show of it has the words and values of the query."""
    shown = rules.message(one.message)
    content = read(shown.properties, rules.body(one.message.body), own)
    return query.has_words(content.text) and query.has_values(content.fields)
