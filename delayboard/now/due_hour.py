"""What falls due in the next hour, minute by minute, as one path of an SVG and in words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from analytics.scheduled.rows.due_counts import MINUTE, floor
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.counts import Scope
from topology.content.text import count_of, count_text

# An hour that begins within a minute is in 61 minutes.
BARS, BAR_WIDTH, BAR_GAP = 61, 10, 1
HEIGHT = 100
HOUR = timedelta(hours=1)
LABELS = ("now", "+15 min", "+30 min", "+45 min", "+60 min")


@dataclass(frozen=True)
class DueHour:
    """How many messages are due in each of the next minutes, the present one first."""

    numbers: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.numbers)

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
        place = self.numbers.index(most)
        when = f"in {place} min" if place else "now"
        return (
            f"{count_of(self.total, 'message')}, at most {count_text(most)} in one minute ({when})."
        )

    @property
    def cells(self) -> dict[str, str]:
        return {"due/path": self.path, "due/description": self.description}


def read_due_hour(scope: Scope) -> DueHour:
    """From now on: the present minute is the first, and the last bar ends an hour from now."""
    first_at = floor(scope.now, MINUTE)
    numbers = [0] * BARS
    for at, _, number in counts.by_time(scope, scope.now, scope.now + HOUR, (), bar=MINUTE):
        numbers[int((at - first_at).total_seconds()) // MINUTE] = number
    return DueHour(tuple(numbers))
