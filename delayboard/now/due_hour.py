"""What falls due in the next hour, minute by minute, as one path of an SVG and in words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from analytics.scheduled.queries import listing
from analytics.scheduled.rows.due_counts import MINUTE, floor
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.counts import Scope
from topology.graph.live_values import count_text

BARS, BAR_WIDTH, BAR_GAP = 60, 10, 1
HEIGHT = 100
HOUR = timedelta(hours=1)
LABELS = ("now", "+15 min", "+30 min", "+45 min", "+60 min")


@dataclass(frozen=True)
class DueHour:
    """How many messages are due in each of the next minutes, the present one first."""

    numbers: tuple[int, ...]

    @property
    def path(self) -> str:
        """A bar for each minute with messages; the highest reaches the upper edge."""
        most = max(self.numbers)
        heights = (max(2, round(HEIGHT * number / max(most, 1))) for number in self.numbers)
        return "".join(
            f"M{place * BAR_WIDTH},{HEIGHT}v-{height}h{BAR_WIDTH - BAR_GAP}v{height}z"
            for place, (number, height) in enumerate(zip(self.numbers, heights, strict=True))
            if number
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The same for everybody, whatever the time zone."""
        return LABELS

    @property
    def description(self) -> str:
        most = max(self.numbers)
        if not most:
            return "No message is due in the next hour."
        total, place = sum(self.numbers), self.numbers.index(most)
        when = f"in {place} min" if place else "now"
        messages = "1 message" if total == 1 else f"{count_text(total)} messages"
        return f"{messages}, at most {count_text(most)} in one minute ({when})."

    @property
    def cells(self) -> dict[str, str]:
        return {"due/path": self.path, "due/description": self.description}


class DueBefore(NamedTuple):
    """How many wait that are due before a moment: the hour of the bars has whole minutes."""

    overdue: int
    first_minute: int
    now: int
    last_minute: int
    hour_on: int
    ever: int


def count_due_before(scope: Scope) -> DueBefore:
    first_at = floor(scope.now, MINUTE)
    last_at, hour_on = first_at + HOUR, scope.now + HOUR
    overdue_at = scope.now - listing.OVERDUE_AFTER
    return DueBefore(
        *counts.before(scope, [overdue_at, first_at, scope.now, last_at, hour_on, None])
    )


def read_due_hour(scope: Scope, before: DueBefore) -> DueHour:
    """The present minute is the first, from now on; the last bar ends an hour from now."""
    first_at = floor(scope.now, MINUTE)
    numbers = [0] * BARS
    for at, _, number in counts.by_time(scope, first_at, first_at + HOUR, MINUTE, (), bar=MINUTE):
        numbers[int((at - first_at).total_seconds()) // MINUTE] += number
    numbers[0] -= before.now - before.first_minute
    numbers[-1] += before.hour_on - before.last_minute
    return DueHour(tuple(numbers))
