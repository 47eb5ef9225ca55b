"""What all charts share: a bare look that the page colours, and figures as plain JSON."""

from __future__ import annotations

import json
from typing import Any

import plotly.graph_objects as go

ROW_PIXELS = 34
FRAME_PIXELS = 110
DAY_MS = 86_400_000
# The colours of all charts, each with one meaning; a chart of reasons has only those of REASONS.
ENTERED, LEFT, WAITING, LATE = (f"var(--series-{number})" for number in (1, 2, 3, 4))
PERCENTILES = {"p50": "var(--series-6)", "p95": "var(--series-5)", "p99": LATE}
FAILING, TARGET = "var(--warn)", "var(--error)"
REASONS = {"rejected": 5, "delivery_limit": 2, "expired": 4, "maxlen": 3, "unknown": 6}
OTHER_REASON = 1
# Of fewer days Plotly would label hours too.
FEW_DAYS = 4


def days_axis(number: int) -> dict[str, Any]:
    """An axis of so many days."""
    step = {"dtick": DAY_MS} if number <= FEW_DAYS else {}
    return {"type": "date", "tickformat": "%-d %b", **step}


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
