"""How often messages failed, after how many attempts they recovered, and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from analytics.charts.figure import days_axis, figure

PERCENT = {"tickformat": ".0%", "rangemode": "tozero"}
COLOURS = [f"var(--series-{number})" for number in (5, 2, 4, 3, 1, 6)]


def survival(failing: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Steps down from all failing messages: (attempt, share that still fails after it)."""
    steps = [(0, 1.0), *failing]
    line = go.Scatter(
        x=[attempt for attempt, _ in steps],
        y=[share for _, share in steps],
        mode="lines+markers",
        line={"shape": "hv", "width": 2, "color": "var(--series-4)"},
        hovertemplate="after attempt %{x}: %{y:.1%}<extra></extra>",
    )
    return figure(
        [line],
        xaxis={"title": {"text": "attempt"}, "dtick": max(1, len(steps) // 10)},
        yaxis=PERCENT | {"range": [0, 1.05]},
    )


def failures(rows: Sequence[tuple[str, int, int]]) -> dict[str, Any]:
    """A bar per hour: how many failed of how many messages, as a share."""
    bars = go.Bar(
        x=[hour for hour, _, _ in rows],
        y=[failed / messages if messages else 0 for _, failed, messages in rows],
        customdata=[[failed, messages] for _, failed, messages in rows],
        marker={"color": "var(--series-2)"},
        hovertemplate="%{x}<br>%{customdata[0]} of %{customdata[1]} (%{y:.1%})<extra></extra>",
    )
    return figure(
        [bars],
        xaxis={"type": "category", "dtick": 6, "tickangle": 0},
        yaxis=PERCENT,
    )


def dead_letters(rows: Sequence[tuple[str, str, int]], days: Sequence[str]) -> dict[str, Any]:
    """A bar per day, stacked by reason; of each row the day, the reason and how many arrived."""
    reasons = sorted({reason for _, reason, _ in rows})
    counts = {(day, reason): messages for day, reason, messages in rows}
    traces = [
        go.Bar(
            name=reason,
            x=list(days),
            y=[counts.get((day, reason), 0) for day in days],
            marker={"color": COLOURS[place % len(COLOURS)]},
            hovertemplate="%{x}<br>%{y} × " + reason + "<extra></extra>",
        )
        for place, reason in enumerate(reasons)
    ]
    return figure(
        traces,
        barmode="stack",
        showlegend=True,
        xaxis=days_axis(len(days)),
        yaxis={"rangemode": "tozero"},
    )


def by_hour(rows: Sequence[tuple[str, float, float | None]]) -> dict[str, Any]:
    """Per hour a bar of the messages scheduled in it and a mark of those that wait at its end, on
    an axis of its own: with long delays a thousand times as many wait.

    No marks when it is not known how many wait.
    """
    hours = [hour for hour, _, _ in rows]
    bars = go.Bar(
        name="scheduled",
        x=hours,
        y=[scheduled for _, scheduled, _ in rows],
        marker={"color": "var(--series-3)"},
        hovertemplate="%{x}<br>%{y:.1f} messages scheduled<extra></extra>",
    )
    line = go.Scatter(
        name="waiting",
        x=hours,
        y=[waiting for _, _, waiting in rows],
        mode="lines+markers",
        line={"width": 2, "color": "var(--series-1)"},
        yaxis="y2",
        hovertemplate="end of the hour from %{x}<br>%{y:.1f} messages wait<extra></extra>",
    )
    is_known = any(waiting is not None for _, _, waiting in rows)
    # Without the mode its ticks would be beside those of the other axis, with odd values.
    right = {"side": "right", "overlaying": "y", "showgrid": False, "tickmode": "auto"}
    right["rangemode"] = "tozero"
    layout: dict[str, Any] = {"yaxis2": right | {"title": {"text": "waiting"}}} if is_known else {}
    return figure(
        [bars, line] if is_known else [bars],
        showlegend=is_known,
        xaxis={"type": "category", "dtick": 6, "tickangle": 0},
        yaxis={"rangemode": "tozero", "title": {"text": "scheduled"}},
        **layout,
    )
