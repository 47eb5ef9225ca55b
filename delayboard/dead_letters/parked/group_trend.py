"""How many of a group died when: counts in equal steps up to now, for a small line or for bars."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from analytics.charts.svg import area
from delayboard.models import GroupHour, MessageGroup
from topology.content.text import count_text

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True)
class Span:
    """`steps` steps of this length, the last of which is not over."""

    words: str
    step: timedelta
    steps: int
    step_words: str


# What a list draws, and what a group's own page draws.
SPANS = {
    "day": Span("24 hours", HOUR, 24, "an hour"),
    "week": Span("7 days", 6 * HOUR, 28, "6 hours"),
}
BARS = {
    "hour": Span("48 hours", HOUR, 48, "an hour"),
    "day": Span("60 days", DAY, 60, "a day"),
}


@dataclass(frozen=True)
class Bar:
    """One step as it is drawn: ten units wide, a hundred high at the most."""

    place: int
    from_at: datetime
    number: int
    highest: int

    @property
    def x(self) -> int:
        return self.place * 10

    @property
    def height(self) -> int:
        """One that is not empty is to be seen."""
        return max(2, round(100 * self.number / self.highest)) if self.number else 0

    @property
    def y(self) -> int:
        return 100 - self.height


@dataclass(frozen=True)
class Trend:
    """Counts of deaths from `from_at` (UTC) on, the oldest first."""

    span: Span
    from_at: datetime
    counts: Sequence[int]

    @property
    def total(self) -> int:
        return sum(self.counts)

    @property
    def highest(self) -> int:
        return max(self.counts, default=0)

    @property
    def width(self) -> int:
        """Of the bars, in the units of Bar."""
        return 10 * len(self.counts)

    @property
    def area(self) -> str:
        """The corners of a small drawing, as analytics.charts.svg has it."""
        return area(self.counts, most=self.highest, steps=len(self.counts))

    @property
    def described(self) -> str:
        if not self.total:
            return f"No message was dead-lettered in the last {self.span.words}."
        return (
            f"{count_text(self.total)} dead-lettered in the last {self.span.words}, at most "
            f"{count_text(self.highest)} in {self.span.step_words}."
        )

    @property
    def bars(self) -> list[Bar]:
        return [
            Bar(place, self.from_at + place * self.span.step, number, self.highest)
            for place, number in enumerate(self.counts)
        ]


def begin(span: Span, now: datetime) -> datetime:
    """When the first step begins; steps begin at whole hours, days, or quarters of days."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    this = today + (now - today) // span.step * span.step
    return this - (span.steps - 1) * span.step


def counted(rows: Iterable[tuple[datetime, int]], span: Span, now: datetime) -> Trend:
    """Pure: the trend of these hours and their counts; hours outside of the span are ignored."""
    from_at = begin(span, now)
    counts = [0] * span.steps
    for hour, number in rows:
        place = (hour - from_at) // span.step
        if 0 <= place < span.steps:
            counts[place] += number
    return Trend(span, from_at, counts)


def trends(groups: Collection[MessageGroup], span: Span, now: datetime) -> dict[int, Trend]:
    """The trend of each group with those merged into it, by its id."""
    from_at = begin(span, now)
    hours: dict[int, list[tuple[datetime, int]]] = {group.pk: [] for group in groups}
    merged = MessageGroup.objects.filter(merged_into__in=hours).values_list("pk", "merged_into")
    shown = {**dict(merged), **{pk: pk for pk in hours}}
    rows = GroupHour.objects.filter(group__in=shown, hour__gte=from_at)
    for pk, hour, died in rows.values_list("group", "hour", "died"):
        hours[shown[pk] or pk].append((hour, died))
    return {pk: counted(found, span, now) for pk, found in hours.items()}


def has_earlier(group: MessageGroup, trend: Trend) -> bool:
    """Whether some of the group died before its trend begins."""
    return GroupHour.objects.filter(group__in=group.member_ids, hour__lt=trend.from_at).exists()
