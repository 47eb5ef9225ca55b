"""How late messages left their delays: percentiles per delay, and how they spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from analytics.charts.figure import figure

# A logarithmic axis has no zero; what is shorter is drawn here and said in the hover text.
SHORTEST_MS = 0.1
SYMBOLS = {"p50": "circle", "p95": "diamond", "p99": "square", "max": "line-ns-open"}


class Percentiles(NamedTuple):
    """Of one delay, in milliseconds; `label` names it."""

    label: str
    p50: float
    p95: float
    p99: float
    max: float


class Spread(NamedTuple):
    """How many messages of one delay were how late: (label of the bucket, messages), in order."""

    label: str
    buckets: Sequence[tuple[str, int]]


def percentiles(rows: Sequence[Percentiles]) -> dict[str, Any]:
    """A line per delay with a mark for each percentile."""
    labels = [row.label for row in rows]
    traces = []
    for name, symbol in SYMBOLS.items():
        values = [getattr(row, name) for row in rows]
        traces.append(
            go.Scatter(
                name=name,
                x=[max(value, SHORTEST_MS) for value in values],
                y=labels,
                customdata=values,
                mode="markers",
                marker={"symbol": symbol, "size": 11, "line": {"width": 2}},
                hovertemplate=f"%{{y}}<br>{name}: %{{customdata:.1f}} ms late<extra></extra>",
            )
        )
    return figure(
        traces,
        rows=len(rows),
        xaxis={"type": "log", "title": {"text": "milliseconds late"}},
        yaxis={"autorange": "reversed", "type": "category"},
    )


def spread(rows: Sequence[Spread]) -> dict[str, Any]:
    """Bars per bucket of lateness, one colour per delay."""
    traces = [
        go.Bar(
            name=row.label,
            x=[bucket for bucket, _ in row.buckets],
            y=[messages for _, messages in row.buckets],
            hovertemplate="%{y} messages were %{x} late<extra>" + row.label + "</extra>",
        )
        for row in rows
    ]
    return figure(
        traces,
        barmode="stack",
        showlegend=len(rows) > 1,
        xaxis={"type": "category", "title": {"text": "lateness"}},
        yaxis={"title": {"text": "messages"}, "rangemode": "tozero"},
    )
