"""How often messages were retried, in how many attempts, and what they died of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from analytics.charts.figure import figure


class Share(NamedTuple):
    """Of one topology: how many messages there were, and how many of them were retried."""

    label: str
    messages: int
    retried: int


class Survival(NamedTuple):
    """How many messages of one topology needed this attempt: (attempt, messages), in order."""

    label: str
    attempts: Sequence[tuple[int, int]]


class Deaths(NamedTuple):
    """How often messages died in one queue for one reason."""

    queue: str
    reason: str
    deaths: int


def shares(rows: Sequence[Share]) -> dict[str, Any]:
    """A bar per topology: the share of its messages that were retried."""
    bars = go.Bar(
        orientation="h",
        x=[row.retried / row.messages if row.messages else 0 for row in rows],
        y=[row.label for row in rows],
        customdata=[[row.retried, row.messages] for row in rows],
        hovertemplate="%{y}<br>%{customdata[0]} of %{customdata[1]} (%{x:.1%})<extra></extra>",
    )
    return figure(
        [bars],
        rows=len(rows),
        xaxis={"tickformat": ".0%", "rangemode": "tozero", "title": {"text": "retried"}},
        yaxis={"autorange": "reversed", "type": "category"},
    )


def survival(rows: Sequence[Survival]) -> dict[str, Any]:
    """Bars per attempt: how many messages were retried in it."""
    traces = [
        go.Bar(
            name=row.label,
            x=[attempt for attempt, _ in row.attempts],
            y=[messages for _, messages in row.attempts],
            hovertemplate="%{y} messages in attempt %{x}<extra>" + row.label + "</extra>",
        )
        for row in rows
    ]
    return figure(
        traces,
        barmode="group",
        showlegend=len(rows) > 1,
        xaxis={"dtick": 1, "title": {"text": "attempt"}},
        yaxis={"title": {"text": "messages"}, "rangemode": "tozero"},
    )


def deaths(rows: Sequence[Deaths]) -> dict[str, Any]:
    """A bar per queue, stacked by reason."""
    queues = sorted({row.queue for row in rows})
    traces = [
        go.Bar(
            name=reason,
            orientation="h",
            x=[row.deaths for row in rows if row.reason == reason],
            y=[row.queue for row in rows if row.reason == reason],
            hovertemplate="%{y}<br>%{x} × " + reason + "<extra></extra>",
        )
        for reason in sorted({row.reason for row in rows})
    ]
    return figure(
        traces,
        rows=len(queues),
        barmode="stack",
        showlegend=True,
        xaxis={"title": {"text": "deaths"}, "rangemode": "tozero"},
        yaxis={"autorange": "reversed", "type": "category"},
    )
