"""The recorded messages behind a row of a report's table, newest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import reduce
from operator import or_

from django.db.models import DurationField, ExpressionWrapper, F, Q, QuerySet

from analytics import buckets
from analytics.models import ScheduledMessage
from analytics.models.scheduled_message import measure_lateness
from analytics.results.period import HOUR, ONE_DAY, Period, local_hours, zone_name
from analytics.results.read import Selection
from topology.delays import format_ms, format_span
from topology.models import Broker

KINDS = {"measured": "Measured deliveries", "retried": "Retries"}
# Upper limits of numbers in an address.
_DELAYS, _LATE = len(buckets.DELAY_LABELS), len(buckets.EDGES_MS) + 1
NUMBERS = {"delay": _DELAYS, "late_from": _LATE, "late_to": _LATE, "attempt": 2**31}
SHOWN = 100
# Most ids that are read, the newest of the range: it takes about a second.
MOST_READ = 100_000
# Time by which rows may be out of the order of their recording: batches of several recorders.
DISORDER = timedelta(minutes=10)


@dataclass(frozen=True)
class Bucket:
    """A row of a table. `hour` is a label such as "05:30"; `delay` is the number of a bucket,
    `late_from` that of the first of several and `late_to` that of the first one after them. None
    and "" are any.
    """

    kind: str
    hour: str = ""
    delay: int | None = None
    late_from: int | None = None
    late_to: int | None = None
    attempt: int | None = None


@dataclass(frozen=True)
class Found:
    """`is_all`: no other message matches."""

    rows: Sequence[ScheduledMessage]
    is_all: bool

    @property
    def with_lateness(self) -> Iterator[tuple[ScheduledMessage, str]]:
        """Each row and how late it was, as a person reads it."""
        for row in self.rows:
            late = measure_lateness(row)
            yield row, "–" if late is None else format_span(late)


def read_bucket(values: Mapping[str, str]) -> Bucket | None:
    """The bucket in an address; None for one that no table has."""
    kind, hour = values.get("kind", ""), values.get("hour", "")
    numbers = {}
    for name, limit in NUMBERS.items():
        text = values.get(name, "")
        if text and not (
            text.isascii() and text.isdigit() and len(text) < 11 and int(text) < limit
        ):
            return None
        numbers[name] = int(text) if text else None
    return Bucket(kind, hour, **numbers) if kind in KINDS else None


def describe(bucket: Bucket) -> list[str]:
    """What the messages of the bucket have in common, a few words each."""
    found = []
    if bucket.hour:
        found.append(f"entered in the hour from {bucket.hour} ({zone_name()})")
    if bucket.delay is not None:
        found.append(f"requested delay {buckets.DELAY_LABELS[bucket.delay]}")
    if bucket.late_from is not None:
        low, _ = _bounds(buckets.EDGES_MS, bucket.late_from)
        found.append(f"lateness from {format_ms(low or 0)}")
    if bucket.late_to is not None:
        high, _ = _bounds(buckets.EDGES_MS, bucket.late_to)
        found.append(f"lateness below {format_ms(high or 0)}")
    if bucket.attempt is not None:
        found.append(f"attempt {bucket.attempt}")
    return found


def find(
    period: Period,
    brokers: Sequence[Broker],
    selection: Selection,
    bucket: Bucket,
    kept_from: datetime | None,
) -> Found:
    """The messages that entered a delay in this range; of measured ones the delivery is recorded.

    Messages that left before `kept_from` may be deleted.
    """
    spans = list(_spans(period, bucket, kept_from))
    if not spans:
        return Found((), is_all=True)
    first = _first_id(spans[0][0] - DISORDER)
    last = _first_id(spans[-1][1] + DISORDER)
    floor = max(first, last - MOST_READ)
    of_spans = (Q(entered_at__gte=begin, entered_at__lt=end) for begin, end in spans)
    rows = ScheduledMessage.objects.filter(reduce(or_, of_spans), pk__gte=floor, pk__lt=last)
    # The sum keeps the database from an index in another order.
    of_broker = rows.alias(of_broker=F("broker_id") + 0)
    rows = of_broker.filter(of_broker__in=[broker.pk for broker in brokers])
    # What passed a topology without a delay left it as it entered.
    rows = rows.exclude(left_at=F("entered_at"))
    selected = {
        "topology__slug": selection.topology,
        "topology__kind": selection.pattern,
        "destination": selection.destination,
    }
    rows = rows.filter(**{field: value for field, value in selected.items() if value})
    rows = _in_bucket(rows, bucket)
    found = list(rows.select_related("topology").order_by("-pk")[: SHOWN + 1])
    return Found(found[:SHOWN], is_all=len(found) <= SHOWN and floor == first)


def _spans(
    period: Period, bucket: Bucket, kept_from: datetime | None
) -> Iterator[tuple[datetime, datetime]]:
    """Begin and end of each day, or of the hour in each day, that may still have messages."""
    for day in period.days:
        midnight = datetime.combine(day, time(), UTC)
        spans = [(midnight, midnight + ONE_DAY)]
        if bucket.hour:
            begins = [one for one in local_hours(day) if f"{one:%H:%M}" == bucket.hour]
            spans = [(begin, begin + HOUR) for begin in begins]
        yield from (one for one in spans if kept_from is None or one[1] > kept_from)


def _first_id(at: datetime) -> int:
    """The first id whose message was recorded then or later."""
    entered = ScheduledMessage.objects.filter(entered_at__isnull=False).order_by("pk")
    newest = ScheduledMessage.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    low, high = 1, newest + 1
    while low < high:
        middle = (low + high) // 2
        row = entered.filter(pk__gte=middle, pk__lt=high).values_list("pk", "entered_at").first()
        if row and row[1] is not None and row[1] < at:
            low = row[0] + 1
        else:
            high = middle
    return low


def _in_bucket(rows: QuerySet[ScheduledMessage], bucket: Bucket) -> QuerySet[ScheduledMessage]:
    lateness = ExpressionWrapper(F("left_at") - F("due_at"), DurationField())
    if bucket.kind == "measured":
        rows = rows.filter(left_at__isnull=False, caught_up=True).alias(lateness=lateness)
    if bucket.kind == "retried":
        rows = rows.filter(Q(attempt__gt=1) | Q(headers_json__contains='"x-death"'))
    if bucket.attempt is not None:
        rows = rows.filter(attempt=bucket.attempt)
    if bucket.delay is not None:
        low, high = _bounds(buckets.DELAY_EDGES_MS, bucket.delay)
        rows = rows.filter(_between("requested_delay", low, high))
    if bucket.late_from is not None and bucket.kind == "measured":
        low, _ = _bounds(buckets.EDGES_MS, bucket.late_from)
        rows = rows.filter(_between("lateness", low, None))
    if bucket.late_to is not None and bucket.kind == "measured":
        high, _ = _bounds(buckets.EDGES_MS, bucket.late_to)
        rows = rows.filter(_between("lateness", None, high))
    return rows


def _bounds(edges: Sequence[float], number: int) -> tuple[float | None, float | None]:
    """The lower and upper end of a bucket in milliseconds; None is open."""
    low = edges[number - 1] if number else None
    return low, edges[number] if number < len(edges) else None


def _between(name: str, low: float | None, high: float | None) -> Q:
    """The condition from `low`, included, to `high`, in milliseconds."""
    bounds = ((f"{name}__gte", low), (f"{name}__lt", high))
    return Q(**{key: timedelta(milliseconds=ms) for key, ms in bounds if ms is not None})
