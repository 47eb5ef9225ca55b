"""How many messages the consumers of each queue took in their best minute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Max

from analytics.models import ConsumptionPeak
from topology.models import Broker
from topology.snapshot import QueueNumbers, Snapshot

MINUTE = timedelta(minutes=1)
# Time between two readings above which the minute of the consumption is unknown.
LONGEST = timedelta(minutes=2)


@dataclass(frozen=True)
class Reading:
    """`consumed` is the counter of the queue at this moment."""

    at: datetime
    consumed: int


class ConsumptionMeter:
    """Reads the counters of each snapshot and stores the best minute of each queue and day."""

    def __init__(self) -> None:
        self._begun: dict[int, dict[str, Reading]] = {}
        self._stored: dict[tuple[int, str], tuple[datetime, int]] = {}

    def read(self, broker: Broker, snapshot: Snapshot) -> None:
        """Store the peaks that the newest snapshot of a broker shows."""
        before = self._begun.get(broker.pk, {})
        found, self._begun[broker.pk] = measure(before, snapshot.numbers, snapshot.taken_at)
        today = snapshot.taken_at.replace(hour=0, minute=0, second=0, microsecond=0)
        for queue, messages in found.items():
            day, most = self._stored.get((broker.pk, queue), (today, 0))
            if day == today and messages <= most:
                continue
            _store(broker, queue, today, messages)
            self._stored[broker.pk, queue] = (today, messages)


def measure(
    begun: Mapping[str, Reading], numbers: Mapping[str, QueueNumbers], at: datetime
) -> tuple[dict[str, int], dict[str, Reading]]:
    """Messages a minute of each queue whose minute is over, and where the next ones begin."""
    found: dict[str, int] = {}
    following: dict[str, Reading] = {}
    for queue, one in numbers.items():
        if one.consumed is None:
            continue
        first = begun.get(queue)
        if first is None or one.consumed < first.consumed or at - first.at > LONGEST:
            following[queue] = Reading(at, one.consumed)
        elif at - first.at < MINUTE:
            following[queue] = first
        else:
            if messages := round((one.consumed - first.consumed) * (MINUTE / (at - first.at))):
                found[queue] = messages
            following[queue] = Reading(at, one.consumed)
    return found, following


def _store(broker: Broker, queue: str, day_at: datetime, messages: int) -> None:
    row, is_new = ConsumptionPeak.objects.get_or_create(
        broker=broker, queue=queue, day_at=day_at, defaults={"messages": messages}
    )
    if not is_new:
        higher = ConsumptionPeak.objects.filter(pk=row.pk, messages__lt=messages)
        higher.update(messages=messages)


def best_minutes(brokers: Iterable[Broker]) -> dict[tuple[int, str], int]:
    """The most messages a minute by broker and queue, of all days with a peak."""
    rows = ConsumptionPeak.objects.filter(broker__in=brokers)
    peaks = rows.values_list("broker", "queue").annotate(most=Max("messages"))
    return {(broker, queue): most for broker, queue, most in peaks}
