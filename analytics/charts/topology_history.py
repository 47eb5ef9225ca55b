"""What passed a topology by hour or day: rates, waiting messages and late ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from analytics.charts.figure import ENTERED, LATE, LEFT, WAITING, figure

# Below this number Plotly would repeat ticks.
FEW = 6


class Span(NamedTuple):
    """An hour or a day; None is not observed. `waiting` is the number at its end."""

    label: str
    entered: int | None
    left: int | None
    late: int | None
    waiting: int | None


def throughput(spans: Sequence[Span]) -> dict[str, Any]:
    """Messages that entered and left, as two lines."""
    labels = [one.label for one in spans]
    entered, left = [one.entered for one in spans], [one.left for one in spans]
    return figure(
        [_line("in", labels, entered, ENTERED), _line("out", labels, left, LEFT)],
        xaxis=_across(spans),
        yaxis=_up([*entered, *left]),
    )


def depth(spans: Sequence[Span]) -> dict[str, Any]:
    """Messages that waited at the end of each span."""
    waiting = [one.waiting for one in spans]
    line = _line("waiting", [one.label for one in spans], waiting, WAITING)
    return figure([line], xaxis=_across(spans), yaxis=_up(waiting))


def lateness(spans: Sequence[Span]) -> dict[str, Any]:
    """A bar for each span: messages that left more than a second late."""
    late = [one.late for one in spans]
    bars = go.Bar(
        x=[one.label for one in spans],
        y=late,
        marker={"color": LATE},
        hovertemplate="%{x}: %{y} late<extra></extra>",
    )
    return figure([bars], xaxis=_across(spans), yaxis=_up(late))


def _across(spans: Sequence[Span]) -> dict[str, Any]:
    return {"type": "category", "dtick": max(1, len(spans) // 6), "tickangle": 0}


def _up(numbers: Sequence[int | None]) -> dict[str, Any]:
    """From zero, with whole numbers only."""
    most = max((number for number in numbers if number is not None), default=0)
    whole = {"dtick": 1, "range": [0, max(1, most) * 1.05]} if most < FEW else {}
    return {"rangemode": "tozero", "tickformat": ",d", **whole}


def _line(name: str, across: Sequence[str], numbers: Sequence[int | None], colour: str) -> Any:
    return go.Scatter(
        name=name,
        x=list(across),
        y=list(numbers),
        mode="lines",
        line={"width": 2, "color": colour},
        hovertemplate="%{x}: %{y} " + name + "<extra></extra>",
    )
