"""What falls due when, in bars of one width, by destination: the few largest and the others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from analytics.scheduled.queries.search import Match
from analytics.scheduled.rows.due_counts import DAY, HOUR, MINUTE, floor
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.counts import Scope

NAMED = 5
OTHERS = "others"
# The longest range in seconds that is drawn in bars of this width.
WIDTHS = (
    (2 * HOUR, MINUTE),
    (2 * DAY, HOUR),
    (8 * DAY, 3 * HOUR),
    (31 * DAY, 12 * HOUR),
    (92 * DAY, DAY),
    (2 * 365 * DAY, 7 * DAY),
    (12 * 365 * DAY, 30 * DAY),
)
WIDEST = 365 * DAY
# In an address -> how far it looks ahead; "all" looks until the last is due.
SPANS = {"hour": timedelta(hours=1), "day": timedelta(days=1), "week": timedelta(days=7)}
ALL = "all"
# The default is the shortest span in which so much of what waits falls due.
MOST_OF_IT = 0.5

Entry = tuple[datetime, str | None, int]


@dataclass(frozen=True)
class Bar:
    """`numbers` are by series, in the histogram's order."""

    from_at: datetime
    until_at: datetime
    numbers: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.numbers)


@dataclass(frozen=True)
class Histogram:
    """`series` are destinations, the largest first; None is the sum of all others."""

    series: tuple[str | None, ...]
    bars: tuple[Bar, ...]
    width: timedelta

    @property
    def highest(self) -> int:
        return max((bar.total for bar in self.bars), default=0)

    @property
    def total(self) -> int:
        return sum(bar.total for bar in self.bars)

    @property
    def names(self) -> list[str]:
        return [OTHERS if name is None else name for name in self.series]


def width_for(span: timedelta) -> int:
    """Seconds of a bar, so that a span has neither too few of them nor too many."""
    return next((w for most, w in WIDTHS if span.total_seconds() <= most), WIDEST)


def span_for(waiting: int, within: Sequence[int]) -> str:
    """The span that shows most of what waits, by the numbers due within each of SPANS."""
    for name, number in zip(SPANS, within, strict=True):
        if number > waiting * MOST_OF_IT:
            return name
    return ALL if waiting else "hour"


def of_counts(scope: Scope, from_at: datetime, until_at: datetime) -> Histogram:
    """Of everything in the scope; the first and the last bar end where the range does."""
    width = width_for(until_at - from_at)
    named = list(counts.destinations(scope, from_at, until_at))[:NAMED]
    entries = counts.by_time(scope, from_at, until_at, named, bar=width)
    return _histogram(entries, named, from_at, until_at, width)


def of_matches(matches: Sequence[Match], from_at: datetime, until_at: datetime) -> Histogram:
    """Of messages that a search found."""
    width = width_for(until_at - from_at)
    within = [match for match in matches if from_at <= match.due_at < until_at]
    largest = Counter(match.destination for match in within).most_common(NAMED)
    named = [destination for destination, _ in largest]
    entries: list[Entry] = [
        (match.due_at, match.destination if match.destination in named else None, 1)
        for match in within
    ]
    return _histogram(entries, named, from_at, until_at, width)


def _histogram(
    entries: Iterable[Entry],
    named: Sequence[str],
    from_at: datetime,
    until_at: datetime,
    width: int,
) -> Histogram:
    by_bar: dict[datetime, Counter[str | None]] = defaultdict(Counter)
    for due_at, destination, number in entries:
        by_bar[floor(due_at, width)][destination] += number
    drawn = {name for numbers in by_bar.values() for name in numbers}
    series = tuple(name for name in (*named, None) if name in drawn)
    step = timedelta(seconds=width)
    bars, at = [], floor(from_at, width)
    while at < until_at:
        numbers = by_bar.get(at, Counter[str | None]())
        ends = max(at, from_at), min(at + step, until_at)
        bars.append(Bar(*ends, tuple(numbers[name] for name in series)))
        at += step
    return Histogram(series, tuple(bars), step)
