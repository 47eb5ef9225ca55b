"""Charts: a bare look that the page colours, figures as plain JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

ROW_PIXELS = 34
FRAME_PIXELS = 110
DAY_MS = 86_400_000
# The colours of all charts, each with one meaning; a chart of reasons has only those of REASONS.
ENTERED, LEFT, WAITING, LATE = (f"var(--series-{number})" for number in (1, 2, 3, 4))
PERCENTILES = {"p50": "var(--series-6)", "p95": "var(--series-5)", "p99": LATE}
FAILING, TARGET, EVENT = "var(--warn)", "var(--error)", "var(--accent)"
REASONS = {"rejected": 5, "delivery_limit": 2, "expired": 4, "maxlen": 3, "unknown": 6}
OTHER_REASON = 1
# Most days of an axis with a tick for each: there Plotly would label hours too.
FEW_DAYS = 4
# Where shorter values are drawn, with the value in the hover text: a logarithmic axis has no zero.
SHORTEST_MS = 0.5
SYMBOLS = {"p50": "circle", "p95": "square", "p99": "triangle-up"}
TICKS = {
    "tickvals": [0.5, 1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000],
    "ticktext": ["0", "1ms", "10ms", "100ms", "1s", "10s", "1m", "10m", "1h", "10h"],
}
# Number below which Plotly would repeat ticks.
FEW = 6


def days_axis(number: int) -> dict[str, Any]:
    step = {"dtick": DAY_MS} if number <= FEW_DAYS else {}
    return {"type": "date", "tickformat": "%-d %b", **_named("day (UTC)"), **step}


def hours_axis(zone: str) -> dict[str, Any]:
    return {"type": "category", "dtick": 3, "tickangle": 0, **_named(f"hour ({zone})")}


def _named(title: str) -> dict[str, Any]:
    return {"title": {"text": title}}


def mark_events(figure: dict[str, Any], events: Mapping[str, str]) -> dict[str, Any]:
    """The figure with a line for each event: its place across, and its text."""
    line = {"type": "line", "yref": "paper", "y0": 0, "y1": 1}
    colour = {"line": {"color": EVENT, "dash": "dot", "width": 1.5}}
    shapes = [{"x0": at, "x1": at, "name": text, **line, **colour} for at, text in events.items()]
    return {**figure, "layout": figure["layout"] | {"shapes": shapes}}


def links_of(urls: Sequence[str]) -> dict[str, Any]:
    """What the points of a trace lead to, by place; "" is nowhere."""
    return {"links": {str(place): url for place, url in enumerate(urls) if url}}


def figure(traces: list[Any], *, rows: int = 0, **layout: Any) -> dict[str, Any]:
    """The figure as JSON-ready values. `rows` is the number of lines of a horizontal chart."""
    height = max(160, FRAME_PIXELS + rows * ROW_PIXELS) if rows else 280
    style: dict[str, Any] = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "height": height,
        "margin": {"l": 8, "r": 16, "t": 8, "b": 48},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "hovermode": "closest",
        "bargap": 0.15,
    }
    drawn = go.Figure(data=traces, layout=style | layout)
    plain: dict[str, Any] = json.loads(drawn.to_json(validate=True))
    # Plotly's own template is white paper with its own fonts; the page has both.
    plain["layout"].pop("template", None)
    return plain


class Percentiles(NamedTuple):
    """Percentiles of one day, hour or delay in milliseconds; `texts` are the same as a person reads
    them.

    None where there are too few messages for one, or none: a gap. `links` lead to the messages
    that were at least so late.
    """

    label: str
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    texts: tuple[str, ...] = ("", "", "")
    links: tuple[str, ...] = ("", "", "")


def over_time(
    rows: Sequence[Percentiles],
    target: tuple[str, float] | None,
    across: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A line for each percentile over days, or `across` another axis, and a broken one for the
    target: its label and milliseconds.
    """
    traces = [
        go.Scatter(
            name=name,
            x=[row.label for row in rows],
            y=[_drawn(getattr(row, name)) for row in rows],
            customdata=[row.texts[place] for row in rows],
            meta=links_of([row.links[place] for row in rows]),
            mode="lines+markers",
            line={"width": 2, "color": PERCENTILES[name]},
            marker={"symbol": symbol, "size": 6},
            hovertemplate=f"%{{x}}<br>{name} %{{customdata}}<extra></extra>",
        )
        for place, (name, symbol) in enumerate(SYMBOLS.items())
    ]
    if target:
        label, limit_ms = target
        traces.append(
            go.Scatter(
                name=label,
                x=[row.label for row in rows],
                y=[limit_ms] * len(rows),
                mode="lines",
                line={"width": 1.5, "dash": "dash", "color": TARGET},
                hovertemplate=label + "<extra></extra>",
            )
        )
    up = {"type": "log", **TICKS, **_named("lateness (logarithmic)")}
    return figure(traces, height=260, xaxis=across or days_axis(len(rows)), yaxis=up)


def _drawn(ms: float | None) -> float | None:
    return None if ms is None else max(ms, SHORTEST_MS)


def by_delay(rows: Sequence[Percentiles]) -> dict[str, Any]:
    """A line per requested delay with a mark for each percentile."""
    labels = [row.label for row in rows]
    traces = [
        go.Scatter(
            name=name,
            x=[_drawn(getattr(row, name)) for row in rows],
            y=labels,
            customdata=[row.texts[place] for row in rows],
            meta=links_of([row.links[place] for row in rows]),
            mode="markers",
            marker={"symbol": symbol, "size": 11, "color": PERCENTILES[name]},
            hovertemplate=f"%{{y}}<br>{name} %{{customdata}}<extra></extra>",
        )
        for place, (name, symbol) in enumerate(SYMBOLS.items())
    ]
    up = {"autorange": "reversed", "type": "category", **_named("requested delay")}
    across = {"type": "log", **TICKS, **_named("lateness (logarithmic)")}
    return figure(traces, rows=len(rows), xaxis=across, yaxis=up)


def rate_by_day(rows: Sequence[tuple[str, float | None, str]]) -> dict[str, Any]:
    """A line of shares over days: of each the day, the share (None: a gap) and its text."""
    line = go.Scatter(
        x=[label for label, *_ in rows],
        y=[share for _, share, _ in rows],
        customdata=[text for *_, text in rows],
        mode="lines+markers",
        line={"width": 2, "color": FAILING},
        hovertemplate="%{x}<br>%{customdata}<extra></extra>",
    )
    up = {"tickformat": ".1%", "rangemode": "tozero", **_named("messages that failed, %")}
    return figure([line], height=200, xaxis=days_axis(len(rows)), yaxis=up)


def rate_by_queue(rows: Sequence[tuple[str, float, str]]) -> dict[str, Any]:
    """A bar for each queue: its name, the share and its text."""
    bars = go.Bar(
        x=[share for _, share, _ in rows],
        y=[name for name, *_ in rows],
        customdata=[text for *_, text in rows],
        orientation="h",
        marker={"color": FAILING},
        hovertemplate="%{y}<br>%{customdata}<extra></extra>",
    )
    across = {"tickformat": ".1%", "rangemode": "tozero", **_named("messages that failed, %")}
    up = {"autorange": "reversed", "type": "category", **_named("queue")}
    return figure([bars], rows=len(rows), xaxis=across, yaxis=up)


def survival(failing: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Steps down from all failing messages: (attempt, share that still fails after it)."""
    steps = [(0, 1.0), *failing]
    line = go.Scatter(
        x=[attempt for attempt, _ in steps],
        y=[share for _, share in steps],
        mode="lines+markers",
        line={"shape": "hv", "width": 2, "color": FAILING},
        hovertemplate="after attempt %{x}: %{y:.1%}<extra></extra>",
    )
    across = {"dtick": max(1, len(steps) // 10), **_named("attempt")}
    up = {"tickformat": ".0%", "rangemode": "tozero", "range": [0, 1.05]}
    up |= _named("messages that still fail, %")
    return figure([line], height=200, xaxis=across, yaxis=up)


def dead_letters(rows: Sequence[tuple[str, str, int]], days: Mapping[str, bool]) -> dict[str, Any]:
    """A bar per day, stacked by reason; of each row the day, the reason and how many arrived.

    `days` says which have figures: the others have no bar, not even of zero.
    """
    reasons = sorted({reason for _, reason, _ in rows})
    counts = {(day, reason): messages for day, reason, messages in rows}
    traces = [
        go.Bar(
            name=reason,
            x=list(days),
            y=[counts.get((day, reason), 0) if known else None for day, known in days.items()],
            marker={"color": f"var(--series-{REASONS.get(reason, OTHER_REASON)})"},
            hovertemplate="%{x}<br>%{y} × " + reason + "<extra></extra>",
        )
        for reason in reasons
    ]
    across, up = days_axis(len(days)), {"rangemode": "tozero", **_named("dead letters")}
    return figure(traces, barmode="stack", showlegend=True, xaxis=across, yaxis=up)


class Span(NamedTuple):
    """An hour or a day; None is not observed. `waiting` is the number at its end."""

    label: str
    entered: int | None
    left: int | None
    late: int | None
    waiting: int | None


def throughput(spans: Sequence[Span]) -> dict[str, Any]:
    labels = [one.label for one in spans]
    entered, left = [one.entered for one in spans], [one.left for one in spans]
    return figure(
        [_line("in", labels, entered, ENTERED), _line("out", labels, left, LEFT)],
        xaxis=_across(spans),
        yaxis=_up([*entered, *left], "messages"),
    )


def depth(spans: Sequence[Span]) -> dict[str, Any]:
    waiting = [one.waiting for one in spans]
    line = _line("waiting", [one.label for one in spans], waiting, WAITING)
    return figure([line], xaxis=_across(spans), yaxis=_up(waiting, "waiting messages"))


def queue_depth(labels: Sequence[str], messages: Sequence[int | None]) -> dict[str, Any]:
    """The depth of a queue; None is unknown."""
    line = _line("messages", labels, messages, WAITING)
    return figure([line], xaxis=_time_axis(labels), yaxis=_up(messages, "messages"))


def queue_rates(
    labels: Sequence[str], rates: Mapping[str, Sequence[float | None]]
) -> dict[str, Any]:
    """A line for each rate by its name, in messages per second; None is unknown."""
    traces = [
        _line(name, labels, numbers, colour)
        for (name, numbers), colour in zip(rates.items(), (ENTERED, LEFT, LATE), strict=True)
    ]
    up = {"rangemode": "tozero", **_named("messages per second")}
    return figure(traces, xaxis=_time_axis(labels), yaxis=up)


def lateness(spans: Sequence[Span]) -> dict[str, Any]:
    """A bar for each span: messages that left more than a second late."""
    late = [one.late for one in spans]
    bars = go.Bar(
        x=[one.label for one in spans],
        y=late,
        marker={"color": LATE},
        hovertemplate="%{x}: %{y} late<extra></extra>",
    )
    return figure([bars], xaxis=_across(spans), yaxis=_up(late, "late messages"))


def _across(spans: Sequence[Span]) -> dict[str, Any]:
    return _time_axis([one.label for one in spans])


def _time_axis(labels: Sequence[str]) -> dict[str, Any]:
    return {"type": "category", "dtick": max(1, len(labels) // 6), "tickangle": 0, **_named("time")}


def _up(numbers: Sequence[int | None], title: str) -> dict[str, Any]:
    """An axis from zero, with whole numbers only."""
    most = max((number for number in numbers if number is not None), default=0)
    whole = {"dtick": 1, "range": [0, max(1, most) * 1.05]} if most < FEW else {}
    return {"rangemode": "tozero", "tickformat": ",d", **whole, **_named(title)}


def _line(name: str, across: Sequence[str], numbers: Sequence[float | None], colour: str) -> Any:
    return go.Scatter(
        name=name,
        x=list(across),
        y=list(numbers),
        mode="lines",
        line={"width": 2, "color": colour},
        hovertemplate="%{x}: %{y} " + name + "<extra></extra>",
    )
