"""Which queues contain messages that failed elsewhere, by x-death.

A check reads the first message of a queue; the firehose copies what is published to it.

Consumers publish messages there that they give up, which no definition shows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic

from django.utils import timezone

from delayboard.dead_letters.queues import peek
from delayboard.dead_letters.queues.candidates import Candidate
from delayboard.models import DeadLetterQueue, FailureQueue
from topology import audit
from topology.access import User
from topology.broker.errors import BrokerError
from topology.models import Broker
from topology.patterns.names import LONGEST_NAME_BYTES, byte_length, control_problem
from topology.snapshot import Snapshot

MOST_QUEUES = 20
SECONDS = 3.0


@dataclass(frozen=True)
class Checked:
    """`failed` are the queues whose first message failed, `problems` say why one was not read."""

    number: int
    failed: Sequence[str]
    problems: Sequence[str]
    unchecked: int


def select_queues(broker: Broker, found: Iterable[Candidate]) -> list[str]:
    """The undecided classic queues with messages, without consumers and deaths into them.

    A peek at such a queue costs no delivery and withholds its messages from nobody.
    """
    known = set(DeadLetterQueue.objects.filter(broker=broker).values_list("queue", flat=True))
    known |= find_failed(broker)
    return [
        one.queue
        for one in found
        if one.type == "classic"
        and one.is_unfed
        and one.numbers.messages
        and one.numbers.consumers == 0
        and one.queue not in known
    ]


def check_queues(user: User, broker: Broker, snapshot: Snapshot, names: Sequence[str]) -> Checked:
    """Peek at the first message of each, at most MOST_QUEUES within SECONDS; store what failed."""
    until = monotonic() + SECONDS
    names_read, failed, problems = [], [], []
    for name in names[:MOST_QUEUES]:
        queue = snapshot.definitions.queue(name)
        if queue is None or monotonic() > until:
            continue
        try:
            seen = peek.peek_queue(broker, queue, snapshot, 1)
        except BrokerError as error:
            problems.append(f"“{name}”: {error}")
            continue
        names_read.append(name)
        if any(one.history.first_failure for one in seen.peeked_messages):
            failed.append(name)
    note_failures(broker.pk, failed)
    details = {"queues": names_read, "failed": failed}
    audit.record(user, "queues checked for failures", broker=broker, details=details)
    return Checked(len(names_read), failed, problems, len(names) - len(names_read) - len(problems))


def note_failures(broker_id: int, queues: Collection[str]) -> None:
    """Store that messages which failed elsewhere are in these queues."""
    now = timezone.now()
    # A client may name a queue in x-death that no broker could have.
    queues = {
        name
        for name in queues
        if byte_length(name) <= LONGEST_NAME_BYTES and not control_problem(name)
    }
    FailureQueue.objects.bulk_create(
        [FailureQueue(broker_id=broker_id, queue=name, seen_at=now) for name in queues],
        ignore_conflicts=True,
    )


def find_failed(broker: Broker) -> set[str]:
    """The queues in which a check or the firehose has seen a message that failed elsewhere."""
    return set(FailureQueue.objects.filter(broker=broker).values_list("queue", flat=True))
