"""The numbers over the list: what waits, what is overdue, what falls due soon."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from analytics.buckets import OVERDUE_AFTER
from analytics.scheduled.queries.filter import Filter
from analytics.scheduled.queries.search import Match
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.counts import Scope
from analytics.scheduled.summaries.histogram import SPANS


@dataclass(frozen=True)
class Summary:
    """`due_counts` is by SPANS and counts from now on; `matching` counts for the whole filter.

    Stuck messages are overdue too.
    """

    waiting: int
    overdue: int
    due_counts: tuple[int, ...]
    matching: int
    stuck: int = 0


def of_counts(scope: Scope, filters: Filter) -> Summary:
    """Of the scope; the filter's range, and overdue or stuck alone, apply to `matching` only."""
    now = scope.now
    ends = [now + span for span in SPANS.values()]
    until = filters.until_at
    if filters.is_overdue:
        until = min(now - OVERDUE_AFTER, until or now)
    points = [None, now - OVERDUE_AFTER, now, *ends, until]
    if filters.from_at is not None:
        points.append(filters.from_at)
    waiting, overdue, past, *numbers = counts.before(scope, points)
    due_by_end, (last, *first) = numbers[: len(ends)], numbers[len(ends) :]
    asked = max(0, last - sum(first))
    stuck = counts.count_stuck(scope)
    if filters.is_stuck:
        asked = counts.count_stuck(scope, filters.from_at, until) if stuck else 0
    return Summary(waiting, overdue, tuple(number - past for number in due_by_end), asked, stuck)


def of_matches(matches: Sequence[Match], scope: Scope) -> Summary:
    """Of what a search found within the filter, in due order."""
    now = scope.now
    moments = [match.due_at for match in matches]
    past = bisect_left(moments, now)
    return Summary(
        waiting=len(moments),
        overdue=bisect_left(moments, now - OVERDUE_AFTER),
        due_counts=tuple(bisect_left(moments, now + span) - past for span in SPANS.values()),
        matching=len(moments),
        stuck=sum(
            any(one.holds(match.topology, match.destination, match.due_at) for one in scope.stuck)
            for match in matches[:past]
        ),
    )
