"""What falls due in the next hour, minute by minute, as one path of an SVG and in words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from analytics.scheduled.rows.due import MINUTE, floor
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.counts import Scope
from topology.graph.live_values import count_text

BARS, BAR_WIDTH, BAR_GAP = 60, 10, 1
HEIGHT = 100
LABELS_APART = 15


@dataclass(frozen=True)
class DueHour:
    """How many messages are due in each minute from `first_at` on."""

    first_at: datetime
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
    def labels(self) -> list[str]:
        return [_clock(self._at(place)) for place in range(0, BARS + 1, LABELS_APART)]

    @property
    def description(self) -> str:
        most = max(self.numbers)
        if not most:
            return "No message is due in the next hour."
        total, at = sum(self.numbers), self._at(self.numbers.index(most))
        messages = "1 message" if total == 1 else f"{count_text(total)} messages"
        return f"{messages}, at most {count_text(most)} in one minute (at {_clock(at)})."

    @property
    def cells(self) -> dict[str, str]:
        labels = {f"due/label/{place}": text for place, text in enumerate(self.labels)}
        return {"due/path": self.path, "due/description": self.description, **labels}

    def _at(self, place: int) -> datetime:
        return self.first_at + timedelta(minutes=place)


def read_due_hour(scope: Scope) -> DueHour:
    """The present minute is the first; what is overdue is not counted."""
    first_at = floor(scope.now, MINUTE)
    until_at = first_at + timedelta(minutes=BARS)
    found = counts.by_time(scope, first_at, until_at, MINUTE, (), bar=MINUTE)
    numbers = [0] * BARS
    for at, _, number in found:
        numbers[int((at - first_at).total_seconds()) // MINUTE] += number
    return DueHour(first_at, tuple(numbers))


def _clock(moment: datetime) -> str:
    return f"{timezone.localtime(moment):%H:%M}"
