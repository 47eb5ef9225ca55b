"""The results of the nightly jobs: a day's rows, replaced together and read for the charts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, TypeVar

from django.db import transaction
from django.db.models import Sum

from analytics.launch import Result, Row
from analytics.models import (
    AccuracyRow,
    AttemptRow,
    DeathRow,
    LatenessHistogram,
    RetryRow,
    Run,
    UncountedRow,
)
from analytics.models.results import ResultRow
from analytics.models.run import RunState
from analytics.observation import unobserved
from topology.models import Broker

MODELS: dict[str, type[ResultRow]] = {
    "accuracy": AccuracyRow,
    "uncounted": UncountedRow,
    "histogram": LatenessHistogram,
    "retries": RetryRow,
    "attempts": AttemptRow,
    "deaths": DeathRow,
}
AnyRow = TypeVar("AnyRow", bound=ResultRow)


def replace_day(day: date, result: Result) -> None:
    """Put the result in the place of whatever rows the day had, in one transaction."""
    with transaction.atomic():
        forget_day(day)
        for table, model in MODELS.items():
            rows = [model(day=day, **_values(row)) for row in result.tables[table]]
            model._default_manager.bulk_create(rows, batch_size=500)


def forget_day(day: date) -> int:
    """Delete the day's rows; how many there were."""
    with transaction.atomic():
        deleted = [model._default_manager.filter(day=day).delete() for model in MODELS.values()]
    return sum(number for number, _ in deleted)


def has_day(day: date) -> bool:
    """Whether there are figures of this day."""
    return any(model._default_manager.filter(day=day).exists() for model in MODELS.values())


@dataclass(frozen=True)
class Bucket:
    """How many messages of one delay were so late on the whole day: from_ms <= late < to_ms."""

    topology: str
    queue: str
    requested_delay: timedelta
    from_ms: float | None
    to_ms: float | None
    messages: int

    @property
    def place(self) -> str:
        return self.topology or self.queue


@dataclass(frozen=True)
class Report:
    """What is known of one day, for some brokers; `run` is None when nobody ever ran it."""

    day: date
    run: Run | None
    accuracy: Sequence[AccuracyRow]
    uncounted: Sequence[UncountedRow]
    histogram: Sequence[Bucket]
    retries: Sequence[RetryRow]
    attempts: Sequence[AttemptRow]
    deaths: Sequence[DeathRow]
    unobserved: frozenset[str] = frozenset()
    """Slugs of topologies of whose delays nobody sees what leaves."""

    @property
    def is_empty(self) -> bool:
        return not (self.accuracy or self.uncounted or self.retries)

    @property
    def measured(self) -> int:
        return sum(row.measured for row in self.accuracy)

    @property
    def taken(self) -> int:
        return sum(row.taken for row in self.accuracy)

    @property
    def missing(self) -> int:
        return sum(r.missing for r in self.accuracy if r.topology not in self.unobserved)

    @property
    def worst(self) -> AccuracyRow | None:
        """The delay with the greatest p99: percentiles of several cannot be added up."""
        measured = [row for row in self.accuracy if row.p99_ms is not None]
        return max(measured, key=lambda row: row.p99_ms or 0.0, default=None)

    @property
    def messages(self) -> int:
        return sum(row.messages for row in self.retries)

    @property
    def retried(self) -> int:
        return sum(row.retried for row in self.retries)


def report(day: date, brokers: Iterable[Broker]) -> Report:
    """Everything that the nightly run left of this day for these brokers."""
    slugs = [broker.slug for broker in brokers]
    began_at = datetime.combine(day, time(), UTC)
    return Report(
        day=day,
        run=Run.objects.filter(day=day).first(),
        accuracy=_of_day(AccuracyRow, day, slugs),
        uncounted=_of_day(UncountedRow, day, slugs),
        histogram=_buckets(day, slugs),
        retries=_of_day(RetryRow, day, slugs),
        attempts=_of_day(AttemptRow, day, slugs),
        deaths=_of_day(DeathRow, day, slugs),
        unobserved=frozenset(topology.slug for topology in unobserved(since=began_at)),
    )


def newest_day() -> date | None:
    """The newest day that has results, else the newest that anybody asked for."""
    done = Run.objects.filter(state=RunState.DONE).order_by("-day").first()
    run = done or Run.objects.order_by("-day").first()
    return run.day if run else None


def _of_day(model: type[AnyRow], day: date, slugs: Sequence[str]) -> list[AnyRow]:
    return list(model._default_manager.filter(day=day, broker__in=slugs))


def _buckets(day: date, slugs: Sequence[str]) -> list[Bucket]:
    names = ("topology", "queue", "requested_delay", "from_ms", "to_ms")
    rows = LatenessHistogram.objects.filter(day=day, broker__in=slugs)
    sums = rows.order_by(*names).values(*names).annotate(total=Sum("messages"))
    return [Bucket(messages=row["total"], **{name: row[name] for name in names}) for row in sums]


def _values(row: Row) -> dict[str, Any]:
    """The jobs' column names and types -> the models'."""
    values = dict(row)
    if "requested_delay_ms" in values:
        values["requested_delay"] = timedelta(milliseconds=values.pop("requested_delay_ms"))
    if "hour_at" in values:
        values["hour_at"] = datetime.fromisoformat(values["hour_at"])
    return values
