"""How late messages left their delays: by day and by requested delay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from analytics.charts.figure import PERCENTILES, TARGET, days_axis, figure

# A logarithmic axis has no zero; shorter values are drawn here, with the value in the hover text.
SHORTEST_MS = 0.5
SYMBOLS = {"p50": "circle", "p95": "square", "p99": "triangle-up"}
TICKS = {
    "tickvals": [0.5, 1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000],
    "ticktext": ["0", "1ms", "10ms", "100ms", "1s", "10s", "1m", "10m", "1h", "10h"],
}


class Percentiles(NamedTuple):
    """Of one day, hour or delay, in milliseconds; `texts` are the same as a person reads them."""

    label: str
    p50: float
    p95: float
    p99: float
    texts: tuple[str, str, str]


def over_time(rows: Sequence[Percentiles], target: tuple[str, float] | None) -> dict[str, Any]:
    """A line for each percentile over days, and a broken one for the target: its label
    and milliseconds.
    """
    traces = [
        go.Scatter(
            name=name,
            x=[row.label for row in rows],
            y=[max(getattr(row, name), SHORTEST_MS) for row in rows],
            customdata=[row.texts[place] for row in rows],
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
    return figure(traces, height=300, xaxis=days_axis(len(rows)), yaxis={"type": "log", **TICKS})


def by_delay(rows: Sequence[Percentiles]) -> dict[str, Any]:
    """A line per requested delay with a mark for each percentile."""
    labels = [row.label for row in rows]
    traces = [
        go.Scatter(
            name=name,
            x=[max(getattr(row, name), SHORTEST_MS) for row in rows],
            y=labels,
            customdata=[row.texts[place] for row in rows],
            mode="markers",
            marker={"symbol": symbol, "size": 11, "color": PERCENTILES[name]},
            hovertemplate=f"%{{y}}<br>{name} %{{customdata}}<extra></extra>",
        )
        for place, (name, symbol) in enumerate(SYMBOLS.items())
    ]
    up = {"autorange": "reversed", "type": "category"}
    return figure(traces, rows=len(rows), xaxis={"type": "log", **TICKS}, yaxis=up)
