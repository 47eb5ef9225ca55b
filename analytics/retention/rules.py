"""Rules of retention for rows, and the one engine that deletes what is older than they say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet

from analytics.models import (
    Annotation,
    ConsumptionPeak,
    Gap,
    LogHost,
    Minute,
    NightlyReport,
    RepeatedCopy,
    ScheduledMessage,
)
from analytics.models.scheduled_message import REPLAYED
from analytics.observation import is_presumed_delivered

# Rows of one transaction: it writes for some hundredths of a second, then others may.
BATCH = 500
Alive = Callable[[], None]
Rows = QuerySet[Any]


@dataclass(frozen=True)
class Holding:
    """What one rule's store holds now; `number` of units, `size` in bytes where known."""

    rule: Rule
    unit: str
    number: int
    oldest_at: datetime | None
    size: int | None = None


@dataclass(frozen=True)
class Rule(ABC):
    """A store. `keeps` is a number of days, or the setting that has it; "" shows no rule."""

    what: str
    keeps: int | str
    meaning: str

    @property
    def setting(self) -> str:
        return self.keeps if isinstance(self.keeps, str) else ""

    @property
    def days(self) -> int | None:
        """How many days; None for good."""
        return settings.KEEP_DAYS[self.keeps] if isinstance(self.keeps, str) else self.keeps

    def cutoff(self, now: datetime) -> datetime | None:
        """What is older than this may go; None when nothing may."""
        days = self.days
        return None if days is None else now - timedelta(days=days)

    @abstractmethod
    def delete_expired(self, now: datetime, alive: Alive) -> int:
        """Returns how many files or rows that were. `alive` is called between batches."""

    @abstractmethod
    def holding(self, now: datetime) -> Holding: ...


@dataclass(frozen=True)
class RowRule(Rule):
    """Rows of one table; `age` is the field by which they expire."""

    table: Rows
    age: str

    def rows(self, now: datetime) -> Rows:
        """The rows that the rule is about, whatever their age."""
        return self.table.all()

    def expired(self, now: datetime) -> Rows:
        """The rows that may go."""
        cutoff = self.cutoff(now)
        return self.table.none() if cutoff is None else self.older(now, cutoff)

    def older(self, now: datetime, cutoff: datetime) -> Rows:
        """The rows that expired before `cutoff`."""
        return self.rows(now).filter(**{f"{self.age}__lt": cutoff})

    def batches(self, now: datetime) -> Iterator[list[Any]]:
        """The keys of the expired rows."""
        return key_batches(self.expired(now))

    def delete_batch(self, keys: list[Any], now: datetime) -> int:
        """Delete those that are expired still; how many."""
        with transaction.atomic():
            rows = self.expired(now).filter(pk__in=keys).order_by("pk")
            found = list(rows.select_for_update(of=("self",)))
            self.table.filter(pk__in=[row.pk for row in found]).delete()
        return len(found)

    def delete_expired(self, now: datetime, alive: Alive) -> int:
        return delete_batches(self.batches(now), lambda keys: self.delete_batch(keys, now), alive)

    def count(self, now: datetime) -> int:
        return self.rows(now).count()

    def holding(self, now: datetime) -> Holding:
        dated = self.rows(now).exclude(**{self.age: None}).order_by(self.age)
        first = dated.values_list(self.age, flat=True).first()
        return Holding(self, "row", self.count(now), first)


def clean(rules: Iterable[Rule], now: datetime, alive: Alive = lambda: None) -> dict[str, int]:
    """Delete what is older than its retention; data -> how many files or rows were deleted.

    `alive` is called between batches, and may raise to stop. After a kill at any moment, the next
    call continues. Raises LogError for files that cannot be deleted.
    """
    deleted = [(rule.what, rule.delete_expired(now, alive)) for rule in rules]
    return {what: number for what, number in deleted if what}


def key_batches(rows: Rows, order: str = "pk") -> Iterator[list[Any]]:
    """The keys of these rows by a unique field, read outside of any transaction."""
    rest = rows
    while found := list(rest.order_by(order).values_list("pk", order)[:BATCH]):
        yield [key for key, _ in found]
        rest = rows.filter(**{f"{order}__gt": found[-1][1]})


def delete_batches(
    batches: Iterable[list[Any]], delete: Callable[[list[Any]], int], alive: Alive
) -> int:
    """Delete a batch at a time, `alive` after each; how many."""
    total = 0
    for keys in batches:
        total += delete(keys)
        alive()
    return total


@dataclass(frozen=True)
class ScheduledRule(RowRule):
    """Scheduled messages: those that have left, or those that are overdue."""

    def rows(self, now: datetime) -> Rows:
        left = Q(left_at=None) & is_presumed_delivered(now)
        if self.age == "left_at":
            return self.table.filter(Q(left_at__isnull=False) | left)
        return self.table.filter(left_at=None, due_at__lt=now).exclude(left)

    def older(self, now: datetime, cutoff: datetime) -> Rows:
        if self.age == "due_at":
            return super().older(now, cutoff)
        left = Q(left_at__lt=cutoff) | Q(left_at=None, due_at__lt=cutoff)
        is_tracked = ~Q(tracking_id="") & ~Q(tracking_id__startswith=REPLAYED)
        return self.rows(now).filter(left & ~is_tracked)


DELIVERED = ScheduledRule(
    "Delivered messages",
    7,
    "Messages that left their delay. If deliveries are not observed, messages past their "
    "due time. Delayboard keeps the messages that it published, because pages show them.",
    ScheduledMessage.objects.all(),
    "left_at",
)
OVERDUE = ScheduledRule(
    "Overdue messages",
    90,
    "Messages past their due time without an observed delivery.",
    ScheduledMessage.objects.all(),
    "due_at",
)
MINUTES = RowRule(
    "Counts per minute",
    30,
    "Numbers of the overview page.",
    Minute.objects.all(),
    "minute_at",
)
CONSUMPTION = RowRule(
    "Consumption peaks",
    28,
    "The best minute of the consumers of each queue and day. The calendar of due messages compares "
    "with it.",
    ConsumptionPeak.objects.all(),
    "day_at",
)
GAPS = RowRule(
    "Gaps",
    365,
    "Periods in which RabbitMQ may have dropped copies, with the cause.",
    Gap.objects.all(),
    "until_at",
)
ANNOTATIONS = RowRule(
    "Annotations",
    365,
    "Deploys and other annotations that people or programs added to the charts of Reports.",
    Annotation.objects.all(),
    "at",
)
REPORTS = RowRule(
    "Nightly reports",
    "KEEP_REPORTS_DAYS",
    "Stored files of nightly reports, with their deliveries. The page Reports keeps its figures.",
    NightlyReport.objects.all(),
    "made_at",
)
# Repeated copies, for a week: lines of a host that comes back later may count twice.
REPEATS = RowRule("", 7, "", RepeatedCopy.objects.all(), "recorded_at")
# Stopped hosts of which everything was read.
HOSTS = RowRule(
    "",
    1,
    "",
    LogHost.objects.filter(has_ended=True, unread_bytes=0, unsent_since=None),
    "seen_at",
)
RULES = (DELIVERED, OVERDUE, MINUTES, CONSUMPTION, GAPS, ANNOTATIONS, REPORTS, REPEATS, HOSTS)
