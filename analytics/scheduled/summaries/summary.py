"""The numbers over the list: what waits, what is overdue, what falls due soon."""

from __future__ import annotations

from dataclasses import dataclass

from analytics.buckets import OVERDUE_AFTER
from analytics.scheduled.queries.filter import Filter
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.counts import SPANS, Scope


@dataclass(frozen=True)
class Summary:
    """Numbers above counts.MOST are MOST + 1. `due_counts` is by SPANS and counts from now on;
    `matching` counts for the whole filter. Stuck messages are overdue too.
    """

    waiting: int
    overdue: int
    due_counts: tuple[int, ...]
    matching: int
    stuck: int = 0


def of_counts(scope: Scope, filters: Filter) -> Summary:
    """Of the scope; the filter's range, and overdue or stuck alone, apply to `matching` only."""
    now, until = scope.now, filters.until_at
    if filters.is_overdue:
        until = min(now - OVERDUE_AFTER, until or now)
    select = scope.stuck_rows if filters.is_stuck else scope.rows
    waiting = counts.count(scope.rows())
    return Summary(
        waiting=waiting,
        overdue=counts.count(scope.overdue_rows()),
        due_counts=tuple(counts.count(scope.rows(now, now + span)) for span in SPANS.values()),
        matching=counts.count(select(filters.from_at, until)) if filters.is_narrowed else waiting,
        stuck=counts.count(scope.stuck_rows()),
    )
