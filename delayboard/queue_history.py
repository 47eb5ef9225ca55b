"""Depth and rates of each queue over 28 days: stored from the polls of the worker, read for a page.

RabbitMQ deprecates the history of its management API (`management_metrics_collection`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from statistics import fmean

from django.utils import timezone

from analytics.events import clean
from delayboard.models import QueueSample
from topology import snapshots
from topology.broker.management.list_queues import LARGE
from topology.models import Broker
from topology.snapshot import QueueNumbers, Snapshot

INTERVAL = timedelta(minutes=15)
# Name in an address -> the range, and the width of a point in its charts.
RANGES = {
    "1": ("24 hours", timedelta(days=1), INTERVAL),
    "7": ("7 days", timedelta(days=7), timedelta(hours=1)),
    "28": ("28 days", timedelta(days=28), timedelta(hours=4)),
}
RATES = {"publish_rate": "published", "deliver_rate": "delivered", "ack_rate": "acknowledged"}
_COUNTS = ("published", "consumed", "acked")


@dataclass
class _Stored:
    """What was read of a broker at the last moment, and what is stored of each queue."""

    at: datetime
    numbers: Mapping[str, QueueNumbers]
    rows: dict[str, tuple[float | None, ...]] = field(default_factory=dict)


class QueueSampler:
    """Stores a moment of each broker every INTERVAL, with one INSERT."""

    def __init__(self) -> None:
        self._stored: dict[int, _Stored] = {}

    def sample(self) -> int:
        """Store what was read last of each broker that answers; returns how many rows."""
        found: list[QueueSample] = []
        for broker in Broker.objects.all():
            known = snapshots.latest(broker.pk)
            if known is None or known.error or known.snapshot is None:
                continue
            at, before = known.snapshot.taken_at, self._stored.get(broker.pk)
            if before is None:
                newest = QueueSample.objects.filter(broker=broker, queue="").first()
                if newest and _slot(newest.at) == _slot(at):
                    # A worker that starts again and again stores no more than another.
                    names = _stored_today(broker, at)
                    self._stored[broker.pk] = _Stored(at, known.snapshot.numbers, names)
                    continue
            if before is None or _slot(at) > _slot(before.at):
                found += self._rows(broker, known.snapshot, before)
        QueueSample.objects.bulk_create(found, batch_size=500)
        return len(found)

    def _rows(
        self, broker: Broker, snapshot: Snapshot, before: _Stored | None
    ) -> Iterator[QueueSample]:
        at, numbers = snapshot.taken_at, snapshot.numbers
        # All once a day, so that retention leaves a row of what does not change.
        known = before.rows if before else _stored_today(broker, at)
        rows = {} if before and at.date() != before.at.date() else known
        stored = self._stored[broker.pk] = _Stored(at, numbers)
        every = {clean(name): _values(name, numbers, at, before) for name in numbers}
        totals = tuple(_sum(values) for values in zip(*every.values(), strict=True))
        if len(every) > LARGE:
            every = {}
        absent = dict.fromkeys(rows.keys() - every.keys(), (None,) * (1 + len(RATES)))
        for name, values in {**every, **absent, "": totals or (0, None, None, None)}.items():
            if name in every:
                stored.rows[name] = values
            if not name or rows.get(name) != values:
                named = dict(zip(("messages", *RATES), values, strict=True))
                yield QueueSample(broker=broker, queue=name, at=at, **named)


def _stored_today(broker: Broker, at: datetime) -> dict[str, tuple[float | None, ...]]:
    """The queues that a worker before has stored: each is stored again, or as unknown."""
    midnight = at.replace(hour=0, minute=0, second=0, microsecond=0)
    rows = QueueSample.objects.filter(broker=broker, at__gte=midnight)
    return dict.fromkeys(rows.values_list("queue", flat=True).distinct(), ())


def _slot(at: datetime) -> int:
    return int(at.timestamp() // INTERVAL.total_seconds())


def _values(
    name: str, numbers: Mapping[str, QueueNumbers], at: datetime, before: _Stored | None
) -> tuple[float | None, ...]:
    """The depth and the rates of a queue since the moment before."""
    now, earlier = numbers[name], before.numbers.get(name) if before else None
    seconds = (at - before.at).total_seconds() if before else 0
    rates: list[float | None] = []
    for count in _COUNTS:
        first, last = getattr(earlier, count, None), getattr(now, count)
        # RabbitMQ counts from zero after a restart.
        is_known = seconds > 0 and first is not None and last is not None and last >= first
        rates.append(round((last - first) / seconds, 4) if is_known else None)
    return (now.messages, *rates)


def _sum(values: Iterable[float | None]) -> float | None:
    """Unknown where one is."""
    found = list(values)
    return None if None in found else sum(one for one in found if one is not None)


@dataclass(frozen=True)
class Point:
    """A part of the range: the greatest depth and the mean rates in it; None is unknown."""

    at: datetime
    messages: int | None = None
    publish_rate: float | None = None
    deliver_rate: float | None = None
    ack_rate: float | None = None

    @property
    def label(self) -> str:
        """The label of one point: a time that the clocks repeat has its time zone."""
        local = timezone.localtime(self.at)
        is_repeated = local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()
        return f"{local:%-d %b %H:%M %Z}" if is_repeated else f"{local:%-d %b %H:%M}"

    @property
    def rates(self) -> list[float | None]:
        """The rates of RATES, as a table has them."""
        found = (getattr(self, name) for name in RATES)
        return [None if rate is None else round(rate, 2) for rate in found]


@dataclass(frozen=True)
class QueueHistory:
    """`since` is the first moment in the range. `peak` is the point with the greatest depth."""

    points: tuple[Point, ...]
    since: datetime | None

    @property
    def is_known(self) -> bool:
        """Whether there are two points to draw a line between."""
        return sum(vars(one) != vars(Point(one.at)) for one in self.points) > 1

    @property
    def peak(self) -> Point | None:
        known = [one for one in self.points if one.messages is not None]
        return max(known, key=lambda one: one.messages or 0, default=None)

    def mean(self, rate: str) -> float | None:
        known = [value for one in self.points if (value := getattr(one, rate)) is not None]
        return fmean(known) if known else None


def read_history(broker: Broker, queue: str, chosen: str, now: datetime) -> QueueHistory:
    """The history of a queue over a range of RANGES; of the virtual host for ""."""
    _, span, width = RANGES[chosen]
    begin = datetime.fromtimestamp(
        (now - span).timestamp() // width.total_seconds() * width.total_seconds(), UTC
    )
    samples = QueueSample.objects.filter(broker=broker)
    # The first row of the day before has what has not changed since.
    since = {"queue": clean(queue), "at__gt": begin - timedelta(days=1) - INTERVAL}
    rows = list(samples.filter(**since).order_by("at", "pk"))
    moments = samples.filter(queue="", at__gt=begin).order_by("at").values_list("at", flat=True)
    parts: defaultdict[int, list[QueueSample]] = defaultdict(list)
    place = 0
    for at in moments:
        while place < len(rows) and rows[place].at <= at:
            place += 1
        # All are stored each day, so an earlier row is of a queue that nobody has read since.
        if place and rows[place - 1].at.date() == at.date():
            parts[(at - begin) // width].append(rows[place - 1])
    points = tuple(
        _point(begin + number * width, parts[number])
        for number in range((now - begin) // width + 1)
    )
    return QueueHistory(points, min(moments, default=None))


def _point(at: datetime, rows: list[QueueSample]) -> Point:
    depths = [row.messages for row in rows if row.messages is not None]
    rates = {}
    for rate in RATES:
        known = [value for row in rows if (value := getattr(row, rate)) is not None]
        rates[rate] = fmean(known) if known else None
    return Point(at, max(depths, default=None), **rates)
