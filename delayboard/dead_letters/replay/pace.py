"""How fast a replay goes, measured while somebody looks at its page."""

from __future__ import annotations

import math
from collections import deque
from datetime import datetime, timedelta
from functools import lru_cache

from delayboard.models import BatchState, ReplayBatch
from topology.delays import format_span

PACE_OVER = timedelta(seconds=10)
# Seconds: after a year the display shows that there is no end.
LONGEST_REMAINING = 31_536_000


class Pace:
    """How fast a count grows, over the last PACE_OVER."""

    def __init__(self) -> None:
        self._seen: deque[tuple[datetime, int]] = deque()

    def of(self, count: int, at: datetime) -> float | None:
        """Its growth a second; None before there is a second count."""
        self._seen.append((at, count))
        while len(self._seen) > 2 and at - self._seen[1][0] >= PACE_OVER:
            self._seen.popleft()
        first_at, first = self._seen[0]
        seconds = (at - first_at).total_seconds()
        return max(0, count - first) / seconds if seconds > 0 else None


@lru_cache(maxsize=100)
def _pace_of(batch_id: int) -> Pace:
    return Pace()


def describe_pace(batch: ReplayBatch, at: datetime) -> tuple[str, ...]:
    """How many messages a second are processed, and how long the rest takes, as far as known."""
    if batch.state != BatchState.RUNNING:
        return ()
    pace = _pace_of(batch.pk).of(batch.settled, at)
    if pace is None:
        return ()
    words = f"{pace:.{0 if pace >= 10 else 1}f} per second"
    if not pace or not batch.pending:
        return (words,)
    seconds = timedelta(seconds=math.ceil(min(batch.pending / pace, LONGEST_REMAINING)))
    return words, f"about {format_span(seconds)} left"
