"""How deep the confirmed queues were, sampled every minute, and how they grew."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from delayboard.models import DeadLetterQueue, QueueDepth
from topology import snapshots
from topology.content.text import count_text
from topology.models import Broker

SPAN = timedelta(hours=1)
# Time by which a sample may be older than the time span and still count.
TOLERANCE = timedelta(minutes=10)
# A change within less time says nothing.
SHORTEST = timedelta(minutes=1)


@dataclass(frozen=True)
class Growth:
    """By how many messages a queue changed, negative when it shrank.

    Within SPAN, or within `since` where the first sample is younger.
    """

    change: int
    since: timedelta = SPAN

    @property
    def words(self) -> str:
        """Such as "+12 in the last hour" or "+12 in 14 min"."""
        is_hour = self.since >= SPAN
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
    ago = now - SPAN
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
            found[pk] = Growth(depth - messages, min(SPAN, now - at))
    return found


def sample(now: datetime) -> int:
    """Write down how deep each confirmed queue is; returns how many.

    A broker that does not answer has no depth: nothing is written of it.
    """
    confirmed: dict[int, list[DeadLetterQueue]] = {}
    for row in DeadLetterQueue.objects.filter(is_confirmed=True):
        confirmed.setdefault(row.broker_id, []).append(row)
    found = [
        depth
        for broker in Broker.objects.filter(pk__in=confirmed)
        for depth in _depths(broker, confirmed[broker.pk], now)
    ]
    QueueDepth.objects.bulk_create(found)
    return len(found)


def _depths(broker: Broker, rows: Collection[DeadLetterQueue], now: datetime) -> list[QueueDepth]:
    known = snapshots.fresh(broker)
    if known.error or known.snapshot is None:
        return []
    numbers = known.snapshot.numbers
    return [
        QueueDepth(queue=row, at=now, messages=depth)
        for row in rows
        if row.queue in numbers and (depth := numbers[row.queue].messages) is not None
    ]
