"""The histogram of what falls due, as a page shows it: picture, legend, and the same as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.safestring import SafeString

from analytics.scheduled.pages.scheduled_page import ScheduledList
from analytics.scheduled.queries.filter import Filter, written_moment
from analytics.scheduled.summaries.bars import draw
from analytics.scheduled.summaries.histogram import ALL, OTHERS, Bar, Histogram
from topology.content.text import count_text

LABELS = 4
DUE_UNTIL = {"hour": "+1h", "day": "+1d", "week": "+7d"}
WORDS = {"hour": "Next hour", "day": "Next day", "week": "Next week", ALL: "All"}


@dataclass(frozen=True)
class Row:
    """A bar of the table; `url` leads to its messages."""

    words: str
    url: str
    total: int
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    label: str
    url: str
    is_current: bool


@dataclass(frozen=True)
class Entry:
    """Of the legend: a destination, its number and where its messages are; "" for the others."""

    name: str
    total: int
    url: str


@dataclass(frozen=True)
class DueBars:
    svg: SafeString
    rows: Sequence[Row]
    legend: Sequence[Entry]
    labels: Sequence[str]
    spans: Sequence[Choice]
    highest: int
    width: timedelta


@dataclass(frozen=True)
class Cell:
    """A number over the list and where its messages are."""

    label: str
    number: int
    url: str
    is_current: bool = False
    is_late: bool = False
    is_stuck: bool = False
    is_doubtful: bool = False


def strip(listing: ScheduledList, filters: Filter) -> list[Cell]:
    """What waits, what is overdue, what falls due soon; empty without numbers."""
    total = listing.summary
    if total is None:
        return []
    whole = {"from_": "", "until": "", "overdue": "", "stuck": ""}
    cells = [
        Cell("waiting", total.waiting, filters.query(**whole), is_doubtful=bool(listing.doubts)),
        Cell(
            "overdue",
            total.overdue,
            filters.query(**whole | {"overdue": "1"}),
            is_current=filters.is_overdue,
            is_late=True,
        ),
    ]
    if total.stuck or filters.is_stuck:
        stuck = Cell(
            "stuck",
            total.stuck,
            filters.query(**whole | {"stuck": "1"}),
            is_current=filters.is_stuck,
            is_stuck=True,
        )
        cells.insert(0, stuck)
    for (name, until), number in zip(DUE_UNTIL.items(), total.due_counts, strict=True):
        cells.append(
            Cell(
                f"due in the {WORDS[name].lower()}",
                number,
                filters.query(**whole | {"from_": "now", "until": until}),
                is_current=(filters.from_text, filters.until_text) == ("now", until),
            )
        )
    return cells


def due_bars(listing: ScheduledList, filters: Filter) -> DueBars | None:
    """None when there is nothing to draw."""
    found = listing.histogram
    if found is None:
        return None
    is_dated = found.bars[-1].until_at - found.bars[0].from_at >= timedelta(days=1)

    rows = [
        Row(_span(bar, is_dated), _link(filters, bar), bar.total, bar.numbers) for bar in found.bars
    ]
    words = [
        f"{row.words}: {_numbers(found, bar)}" for row, bar in zip(rows, found.bars, strict=True)
    ]
    return DueBars(
        # analytics.scheduled.summaries.bars escapes every text that it writes.
        svg=SafeString(draw(found, [row.url for row in rows], words)),
        rows=[row for row in rows if row.total],
        legend=[
            Entry(
                name=OTHERS if name is None else name,
                total=sum(bar.numbers[place] for bar in found.bars),
                url="" if name is None else filters.query(destination=name),
            )
            for place, name in enumerate(found.series)
        ],
        labels=_labels(found, is_dated),
        spans=[
            Choice(words_, filters.query(span=name), name == listing.span)
            for name, words_ in WORDS.items()
            if listing.span
        ],
        highest=found.highest,
        width=found.width,
    )


def _link(filters: Filter, bar: Bar) -> str:
    return filters.query(
        from_=written_moment(bar.from_at), until=written_moment(bar.until_at), overdue="", stuck=""
    )


def _numbers(found: Histogram, bar: Bar) -> str:
    parts = zip(found.names, bar.numbers, strict=True)
    named = ", ".join(f"{count_text(number)} {name}" for name, number in parts if number)
    return f"{count_text(bar.total)} due ({named})"


def _span(bar: Bar, is_dated: bool) -> str:
    end = timezone.localtime(bar.until_at)
    is_day = bar.until_at - bar.from_at >= timedelta(days=1)
    return f"{_moment(bar.from_at, is_dated)} to {end:{'%Y-%m-%d' if is_day else '%H:%M'}}"


def _moment(moment: datetime, is_dated: bool) -> str:
    local = timezone.localtime(moment)
    return f"{local:%Y-%m-%d %H:%M}" if is_dated else f"{local:%H:%M}"


def _labels(found: Histogram, is_dated: bool) -> list[str]:
    """Evenly spread from the beginning to the end."""
    first, last = found.bars[0].from_at, found.bars[-1].until_at
    step = (last - first) / (LABELS - 1)
    moments = [timezone.localtime(first + step * place) for place in range(LABELS)]
    is_long = last - first > timedelta(days=4)
    form = "%b %d" if is_long else "%a %H:%M" if is_dated else "%H:%M"
    return [f"{moment:{form}}" for moment in moments]
