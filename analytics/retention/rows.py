"""The rows of the index that are past their time, deleted a batch at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Q, QuerySet

from analytics.models import DueCount, Gap, Minute, ScheduledMessage
from analytics.models.scheduled_message import REPLAYED
from analytics.observation import left_unseen
from analytics.retention.rules import GAPS, LEFT, MINUTES, OVERDUE, Rule
from analytics.scheduled import due
from topology.models import Topology

# A transaction writes for some hundredths of a second, then others may.
BATCH = 500
Alive = Callable[[], None]
Rows = QuerySet[Any]


def past(rule: Rule, now: datetime) -> Rows:
    """The rows that may go. Raises BadSetting."""
    cutoff = rule.cutoff(now)
    rows = rows_of(rule, now)
    if cutoff is None:
        return rows.none()
    if rule in (LEFT, OVERDUE):
        return rows.filter(_is_older(rule, cutoff))
    field = "until_at" if rule is GAPS else "minute_at"
    return rows.filter(**{f"{field}__lt": cutoff})


def rows_of(rule: Rule, now: datetime) -> Rows:
    """The rows that the rule is about, whatever their age."""
    if rule is MINUTES:
        return Minute.objects.all()
    if rule is GAPS:
        return Gap.objects.all()
    if rule is LEFT:
        return ScheduledMessage.objects.filter(_has_left(now))
    overdue = ScheduledMessage.objects.filter(left_at=None, due_at__lt=now)
    return overdue.exclude(_is_taken_to_have_left(now))


def _has_left(now: datetime) -> Q:
    return Q(left_at__isnull=False) | _is_taken_to_have_left(now)


def _is_taken_to_have_left(now: datetime) -> Q:
    return Q(left_at=None) & left_unseen(now)


def _is_older(rule: Rule, cutoff: datetime) -> Q:
    if rule is OVERDUE:
        return Q(due_at__lt=cutoff)
    left = Q(left_at__lt=cutoff) | Q(left_at=None, due_at__lt=cutoff)
    is_tracked = ~Q(tracking_id="") & ~Q(tracking_id__startswith=REPLAYED)
    return left & ~is_tracked


def clean_rows(rule: Rule, now: datetime, alive: Alive) -> int:
    """Delete the rows that are past; how many. `alive` is called between batches."""
    total = 0
    for keys in _batches(past(rule, now)):
        with transaction.atomic():
            rows = past(rule, now).filter(pk__in=keys).order_by("pk")
            found = list(rows.select_for_update(of=("self",)))
            _count_as_gone([row for row in found if isinstance(row, ScheduledMessage)])
            rows.model._default_manager.filter(pk__in=[row.pk for row in found]).delete()
        total += len(found)
        alive()
    return total


def _batches(rows: Rows) -> Iterator[list[int]]:
    """The keys of these rows, read outside of any transaction and in their order."""
    last = 0
    while keys := list(
        rows.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:BATCH]
    ):
        yield keys
        last = keys[-1]


def _count_as_gone(rows: Iterable[ScheduledMessage]) -> None:
    """Take the open ones among them out of the counts of what falls due."""
    changes: dict[int, Counter[tuple[str, datetime]]] = defaultdict(Counter)
    for row in rows:
        if row.topology_id and row.left_at is None and row.due_at is not None:
            changes[row.topology_id][row.destination, row.due_at] -= 1
    for topology in Topology.objects.filter(pk__in=changes):
        due.change(topology, changes[topology.pk])


def forget_empty_counts(now: datetime, alive: Alive) -> None:
    """Delete the counts of minutes and hours that are over and in which nothing waits."""
    empty = DueCount.objects.filter(waiting=0, due_at__lt=now - timedelta(days=1))
    for keys in _batches(empty):
        empty.filter(pk__in=keys).delete()
        alive()
