"""How often messages failed, after how many attempts they recovered, and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from analytics.charts.figure import FAILING, OTHER_REASON, REASONS, days_axis, figure


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
    across = {"title": {"text": "attempt"}, "dtick": max(1, len(steps) // 10)}
    up = {"tickformat": ".0%", "rangemode": "tozero", "range": [0, 1.05]}
    return figure([line], xaxis=across, yaxis=up)


def dead_letters(rows: Sequence[tuple[str, str, int]], days: Sequence[str]) -> dict[str, Any]:
    """A bar per day, stacked by reason; of each row the day, the reason and how many arrived."""
    reasons = sorted({reason for _, reason, _ in rows})
    counts = {(day, reason): messages for day, reason, messages in rows}
    traces = [
        go.Bar(
            name=reason,
            x=list(days),
            y=[counts.get((day, reason), 0) for day in days],
            marker={"color": f"var(--series-{REASONS.get(reason, OTHER_REASON)})"},
            hovertemplate="%{x}<br>%{y} × " + reason + "<extra></extra>",
        )
        for reason in reasons
    ]
    axes = {"xaxis": days_axis(len(days)), "yaxis": {"rangemode": "tozero"}}
    return figure(traces, barmode="stack", showlegend=True, **axes)
