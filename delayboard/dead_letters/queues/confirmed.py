"""The queues of a broker that may contain dead letters: decisions of users, and how they grew."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from delayboard.dead_letters.queues.candidates import Candidate
from delayboard.dead_letters.queues.failures import find_failed
from delayboard.models import DeadLetterQueue, ParkedMessage, ParkedState, Parking, QueueDepth
from topology import audit, snapshots, work
from topology.content.text import count_text, is_encodable
from topology.definitions import is_tap
from topology.models import Broker, State, Topology
from topology.models.work import ENDED
from topology.patterns.pattern import ParamsError
from topology.snapshot import QueueNumbers, Snapshot
from topology.structure.ends import find_ends

# Most parked messages that are counted, to keep the page quick.
COUNTED = 10_000
LONGEST_NAME = 255
TAP = "This queue is a tap of Delayboard. A tap contains copies, not dead letters."
STREAM = "Delayboard cannot take messages from a stream: reading a stream removes no message."

DELAY = (
    "This is a delay queue: its messages leave by themselves. Mark the queue in which failed "
    "messages end."
)
GROWTH_SPAN = timedelta(hours=1)
# Time by which a sample may be older than the time span and still count.
TOLERANCE = timedelta(minutes=10)
# Least time between two depths for a change to say something.
SHORTEST = timedelta(minutes=1)


class Undecided(Exception):
    """Nothing was saved; the message says why."""


@dataclass(frozen=True)
class Line:
    """A queue: its state in the broker (None: not there), and a user's decision.

    `has_failures`: the x-death of its first message recorded a failure in another queue.
    `growth` is None when unknown; `parked` counts to COUNTED + 1 at most.
    """

    name: str
    candidate: Candidate | None
    row: DeadLetterQueue | None = None
    growth: Growth | None = None
    parked: int = 0
    has_failures: bool = False

    @property
    def numbers(self) -> QueueNumbers:
        return self.candidate.numbers if self.candidate else QueueNumbers()

    @property
    def parked_words(self) -> str:
        return f"more than {count_text(COUNTED)}" if self.parked > COUNTED else str(self.parked)

    @property
    def query(self) -> str:
        """What finds its parked messages."""
        return make_query(self.name)

    @property
    def is_proposed(self) -> bool:
        if self.row is not None or self.candidate is None:
            return False
        one = self.candidate
        return one.is_likely or one.is_possible or (self.has_failures and one.is_unfed)

    @property
    def is_excluded(self) -> bool:
        return self.row is not None and not self.row.is_confirmed

    @property
    def is_stream(self) -> bool:
        return self.candidate is not None and self.candidate.type == "stream"


@dataclass(frozen=True)
class Queues:
    """Queues by state; `unparked` counts messages in confirmed ones, None when one is unknown.

    `total` counts the proposed and the other ones that match, of which some may not be listed.
    """

    confirmed: Sequence[Line] = ()
    proposed: Sequence[Line] = ()
    others: Sequence[Line] = ()
    total: int = 0
    unparked: int | None = None

    @property
    def shown(self) -> int:
        return len(self.proposed) + len(self.others)


def queues(
    broker: Broker,
    found: Sequence[Candidate] | None,
    text: str,
    now: datetime,
    *,
    most: int,
    is_current: bool = True,
) -> Queues:
    """Queues whose names contain the text; the number of unconfirmed ones is limited.

    `found` is None until the broker answers: then only users' decisions are known. Growth is
    omitted unless the numbers are current (`is_current`).
    """
    rows = {row.queue: row for row in DeadLetterQueue.objects.filter(broker=broker)}
    seen = {one.queue: one for one in found or ()}
    confirmed = [row for row in rows.values() if row.is_confirmed]
    rest = [one for one in found or () if one.queue not in rows or not rows[one.queue].is_confirmed]
    lines = _list_confirmed(broker, confirmed, seen, now if is_current else None)
    fitting = [one for one in rest if _has_text(one.queue, text)]
    # A queue that no longer exists has no messages.
    depths = [seen[row.queue].numbers.messages for row in confirmed if row.queue in seen]
    if found is None:
        depths = [None]
    failed = find_failed(broker)
    fitting.sort(key=lambda one: one.queue not in failed)
    shown = [
        Line(one.queue, one, rows.get(one.queue), has_failures=one.queue in failed)
        for one in fitting[:most]
    ]
    return Queues(
        confirmed=[line for line in lines if _has_text(line.name, text)],
        proposed=[line for line in shown if line.is_proposed],
        others=[line for line in shown if not line.is_proposed],
        total=len(fitting),
        unparked=None if None in depths else sum(depth or 0 for depth in depths),
    )


def _has_text(name: str, text: str) -> bool:
    return text.casefold() in name.casefold()


def _list_confirmed(
    broker: Broker,
    rows: Sequence[DeadLetterQueue],
    seen: Mapping[str, Candidate],
    now: datetime | None,
) -> list[Line]:
    """The deepest first, as the others; without growth when `now` is None."""
    depths = {row.pk: seen[row.queue].numbers.messages for row in rows if row.queue in seen}
    grown = growths(depths, now) if now else {}
    lines = [
        Line(
            row.queue, seen.get(row.queue), row, grown.get(row.pk), _count_parked(broker, row.queue)
        )
        for row in rows
    ]
    return sorted(lines, key=lambda line: (-(line.numbers.messages or 0), line.name))


def _count_parked(broker: Broker, queue: str) -> int:
    rows = ParkedMessage.objects.filter(broker=broker, queue=queue, state=ParkedState.PARKED)
    return rows.order_by()[: COUNTED + 1].count()


def destinations(broker: Broker, snapshot: Snapshot) -> set[str]:
    """Where the broker's topologies deliver: work queues, what is bound, what forwarders read."""
    names: set[str] = set()
    for topology in Topology.objects.filter(broker=broker).exclude(state=State.DELETED):
        try:
            params = topology.parsed
        except ParamsError:
            continue
        names.update(topology.pattern.targets(params))
        names.update(forwarder.queue for forwarder in topology.forwarders)
        bound = topology.pattern.destinations(params, snapshot.definitions)
        names.update(one.destination for one in bound or () if one.destination_is_queue)
    return names


def decide(
    user: Any, broker: Broker, name: str, snapshot: Snapshot | None, *, is_confirmed: bool
) -> DeadLetterQueue:
    """Save a user's decision on a queue. Raises Undecided.

    Excluding a queue also ends its automatic parking and its parkings.
    """
    problem = _explain_problem(broker, name, snapshot, is_confirmed=is_confirmed)
    if problem:
        raise Undecided(problem)
    changed = {"is_confirmed": is_confirmed, "decided_by": user, "decided_at": timezone.now()}
    if not is_confirmed:
        changed |= {"parks_automatically": False}
    with transaction.atomic():
        row, _ = DeadLetterQueue.objects.update_or_create(
            broker=broker, queue=name, defaults=changed
        )
        if not is_confirmed:
            asked = Parking.objects.filter(broker=broker, queue=name, work__isnull=False)
            for parking in asked.exclude(work__state__in=ENDED).select_related("work"):
                assert parking.work is not None
                work.cancel(parking.work)
        word = "marked" if is_confirmed else "excluded"
        audit.record(user, f"dead-letter queue {word}", broker=broker, what=name)
    return row


def _explain_problem(
    broker: Broker, name: str, snapshot: Snapshot | None, *, is_confirmed: bool
) -> str:
    if not name or len(name) > LONGEST_NAME or not is_encodable(name):
        return "This is not a valid queue name."
    if is_tap(name):
        return TAP
    if not is_confirmed and DeadLetterQueue.objects.filter(broker=broker, queue=name).exists():
        return ""
    if snapshot is None:
        return f"{broker.name} has not answered yet, so its queues are unknown. Try again later."
    queue = snapshot.definitions.queue(name)
    if queue is None:
        return f"{broker.name} has no queue with this name."
    if is_confirmed and queue.type == "stream":
        return STREAM
    if is_confirmed and queue.message_ttl_ms is not None:
        ends = find_ends(snapshot)
        if name in ends.delays and name not in ends.failing:
            return DELAY
    return ""


def make_query(name: str) -> str:
    """No sign of the name is read as a wildcard."""
    escaped = re.sub(r'([\\"*])', r"\\\1", name)
    return f'queue:"{escaped}"'


@dataclass(frozen=True)
class Growth:
    """The number of messages by which a queue changed, negative when it shrank.

    Within GROWTH_SPAN, or within `since` where the first sample is younger.
    """

    change: int
    since: timedelta = GROWTH_SPAN

    @property
    def words(self) -> str:
        """The growth in words: "+12 in the last hour" or "+12 in 14 min"."""
        is_hour = self.since >= GROWTH_SPAN
        span = "the last hour" if is_hour else f"{self.since // timedelta(minutes=1)} min"
        if not self.change:
            return f"unchanged in {span}"
        sign = "+" if self.change > 0 else "−"
        return f"{sign}{count_text(abs(self.change))} in {span}"


def growths(depths: Mapping[int, int | None], now: datetime) -> dict[int, Growth]:
    """The growth of queues by the ids of their rows, from their depths now.

    Against the newest sample that is an hour old, else against the first one of the last hour.
    Without those of which a depth, or a sample that is SHORTEST old, is not known.
    """
    ago = now - GROWTH_SPAN
    rows = QueueDepth.objects.filter(
        queue__in=[pk for pk, depth in depths.items() if depth is not None],
        at__gt=ago - TOLERANCE,
        at__lte=now - SHORTEST,
    )
    before: dict[int, tuple[datetime, int]] = {}
    for pk, at, messages in rows.order_by("at").values_list("queue", "at", "messages"):
        if at <= ago or pk not in before:
            before[pk] = at, messages
    found = {}
    for pk, (at, messages) in before.items():
        if (depth := depths[pk]) is not None:
            found[pk] = Growth(depth - messages, min(GROWTH_SPAN, now - at))
    return found


def sample_depths(now: datetime) -> int:
    """Write down how deep each confirmed queue is; returns how many.

    A broker that does not answer has no depth: nothing is written of it.
    """
    confirmed: dict[int, list[DeadLetterQueue]] = {}
    for row in DeadLetterQueue.objects.filter(is_confirmed=True):
        confirmed.setdefault(row.broker_id, []).append(row)
    found = [
        depth
        for broker in Broker.objects.filter(pk__in=confirmed)
        for depth in _read_depths(broker, confirmed[broker.pk], now)
    ]
    QueueDepth.objects.bulk_create(found)
    return len(found)


def _read_depths(
    broker: Broker, rows: Collection[DeadLetterQueue], now: datetime
) -> list[QueueDepth]:
    known = snapshots.fresh(broker)
    if known.error or known.snapshot is None:
        return []
    numbers = known.snapshot.numbers
    return [
        QueueDepth(queue=row, at=now, messages=depth)
        for row in rows
        if row.queue in numbers and (depth := numbers[row.queue].messages) is not None
    ]
