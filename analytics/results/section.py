"""A table of a report: its columns and rows, as a page, as texts and as CSV."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

from django.utils.html import escape
from django.utils.safestring import SafeString

from analytics.charts.heat import HeatMap
from analytics.results.read import Report
from topology.content.text import count_text, isolate_names
from topology.delays import format_ms

# Figure of a report -> its meaning, in one sentence.
DEFINITIONS: dict[str, str] = tomllib.loads(
    Path(__file__).with_name("definitions.toml").read_text(encoding="utf-8")
)


# Views of the page: name in the address -> label.
VIEWS = {
    **{"lateness": "Lateness", "retries": "Retries", "dead-letters": "Dead letters"},
    **{"ledger": "Ledger", "runs": "Runs"},
}
_VIEW_OF = {
    **dict.fromkeys(("recovery", "failures_map", "survival", "rates"), "retries"),
    **dict.fromkeys(("groups", "causes"), "retries"),
    **dict.fromkeys(("dead_letters", "dead_letters_map", "handled"), "dead-letters"),
    "ledger": "ledger",
}
Value: TypeAlias = str | int | float | None
Row: TypeAlias = Sequence[Value]
DAY, TOTAL = "Day", "Total"
MOST_OPEN_ROWS = 6
# Characters that a search takes for itself within quotes.
_QUOTED, _ESCAPED = re.compile(r'["\\*]'), r"\\\g<0>"


def view_of(section: str) -> str:
    """The name in VIEWS of the view that has this table."""
    return _VIEW_OF.get(section, "lateness")


@dataclass(frozen=True)
class Column:
    """`kind`: text, count, number, ms or share."""

    label: str
    kind: str = "text"

    def text(self, value: Value) -> str:
        """The value as a person reads it."""
        if value is None or self.kind == "text":
            return "–" if value is None else str(value)
        if self.kind == "count":
            return count_text(int(value))
        number = float(value)
        if self.kind == "number":
            return f"{number:.2f}"
        return format_ms(number) if self.kind == "ms" else percent(number)


@dataclass(frozen=True)
class Section:
    """A chart's numbers, or a table without chart."""

    key: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    empty: str
    searches: Sequence[str] = ()
    """Of each row the search for its parked messages."""
    parked_url: str = ""
    """The page that takes the searches; empty where there is none for all of the report."""
    day_url: str = ""
    """The same page without a range: a day in the first column links to the report of that day."""
    buckets: Sequence[str] = ()
    """Of each row what the page of recorded messages finds it by (`messages.read_bucket`)."""
    messages_url: str = ""
    """That page with range and filters; empty where no message of the range is kept."""
    cells_of: Sequence[Sequence[str]] = ()
    """Of each row what finds the messages of each column after the first, as `buckets`, or as
    `searches` of dead letters."""
    figure: dict[str, Any] = field(default_factory=dict)
    """The chart of its rows, for Plotly; empty without one."""
    drawn: str = ""
    """The same as HTML."""
    heat: HeatMap | None = None

    @property
    def definition(self) -> str:
        return DEFINITIONS[self.key]

    @property
    def view(self) -> str:
        return view_of(self.key)

    @property
    def is_long(self) -> bool:
        return len(self.rows) > MOST_OPEN_ROWS

    @property
    def body(self) -> SafeString:
        """The rows of a table's body; by Python, since a template takes ten times as long."""
        rows = zip(self.cells, self.links, strict=True)
        return SafeString(
            "".join(f"<tr>{''.join(_row_html(row, link))}</tr>" for row, link in rows)
        )

    @property
    def links(self) -> list[str]:
        """The address to which the first cell of each row leads; "" for none."""
        if self.buckets and self.messages_url:
            return [f"{self.messages_url}{bucket}" if bucket else "" for bucket in self.buckets]
        if self.searches and self.parked_url:
            found = [urlencode({"q": search}) if search else "" for search in self.searches]
            return [f"{self.parked_url}?{query}" if query else "" for query in found]
        if self.day_url and self.columns[0].label == DAY:
            days = [str(row[0]) for row in self.rows]
            return [f"{self.day_url}from={day}&to={day}" if day != TOTAL else "" for day in days]
        return [""] * len(self.rows)

    @property
    def cells(self) -> Iterator[list[tuple[str, bool]]]:
        """Per row the texts, and whether each is a number."""
        for row in self.rows:
            yield [
                (column.text(value), column.kind != "text")
                for column, value in zip(self.columns, row, strict=True)
            ]

    @property
    def labelled_cells(self) -> Iterator[list[tuple[str, str, bool]]]:
        """The same after the label of its column, for a table that is cards on a tablet."""
        labels = [column.label for column in self.columns]
        for row in self.cells:
            yield [(label, *cell) for label, cell in zip(labels, row, strict=True)]

    def csv_rows(self) -> Iterator[list[Value]]:
        yield [f"{c.label} ms" if c.kind == "ms" else c.label for c in self.columns]
        yield from map(list, self.rows)


def _row_html(row: Sequence[tuple[str, bool]], link: str) -> Iterator[str]:
    for place, (text, is_number) in enumerate(row):
        shown = text if is_number else escape(isolate_names(text))
        if link and not place:
            shown = f'<a href="{escape(link)}">{shown}</a>'
        kind = ' class="number"' if is_number else ""
        yield f"<td{kind}>{shown}</td>" if place else f'<th scope="row"{kind}>{shown}</th>'


def percent(share: float) -> str:
    """With one digit after the point, more where that would hide that it is not 0 or 100."""
    digits = 1 if share in (0, 1) or 0.0005 <= share <= 0.9995 else 3
    return f"{100 * share:.{digits}f} %"


def ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def search_of(first: date, last: date, **values: str) -> str:
    """What finds the messages parked on these days, by the fields that have a value."""
    quoted = (f'{name}:"{_QUOTED.sub(_ESCAPED, value)}"' for name, value in values.items() if value)
    days = f"parked:>={first} parked:<{last + timedelta(days=1)}"
    return " ".join((*quoted, days, "state:any"))


def search_parked(report: Report, number: int, days: tuple[date, date], **values: str) -> str:
    """`search_of`; "" where the `number` of parked messages is zero, or generated events are
    counted: of these no message is parked.
    """
    first, last = days
    is_generated = any(first <= day <= last for day in report.generated_days)
    return "" if is_generated or not number else search_of(first, last, **values)


def search_parked_hour(report: Report, number: int, begin: datetime) -> str:
    """The same of the messages that were parked in one hour (UTC)."""
    day = begin.date()
    if day in report.generated_days or not number:
        return ""
    end = begin + timedelta(hours=1)
    return f'parked:>="{begin:%Y-%m-%d %H:%M}" parked:<"{end:%Y-%m-%d %H:%M}" state:any'


def bucket_of(kind: str, number: object, **values: str | int | float | None) -> str:
    """What finds the recorded messages of a row (`results.messages.read_bucket`); "" of a row whose
    `number` of them is zero.
    """
    return urlencode({"kind": kind, **values}) if number else ""
