from __future__ import annotations

import json
from typing import Any

import pytest

from analytics.charts import lateness, retries

PERCENTILES = [
    lateness.Percentiles("orders · 5m", 1.0, 2.0, 3.0, 900.0),
    lateness.Percentiles("mails · 1h", -2.0, 0.0, 0.5, 4.0),
]
SPREAD = [
    lateness.Spread("orders · 5m", [("1–2 ms", 5), ("2–5 ms", 0)]),
    lateness.Spread("mails · 1h", [("1–2 ms", 0), ("2–5 ms", 7)]),
]
FIGURES: list[dict[str, Any]] = [
    lateness.percentiles(PERCENTILES),
    lateness.spread(SPREAD),
    retries.shares([retries.Share("orders", 8, 2), retries.Share("idle", 0, 0)]),
    retries.survival([retries.Survival("orders", [(1, 4), (2, 1)])]),
    retries.deaths([retries.Deaths("orders", "rejected", 3), retries.Deaths("a", "maxlen", 1)]),
]


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_is_plain_json_without_paper_template_or_a_link_elsewhere(
    figure: dict[str, Any],
) -> None:
    text = json.dumps(figure)
    assert figure["layout"]["paper_bgcolor"] == "rgba(0,0,0,0)"
    assert "template" not in figure["layout"]
    assert "http" not in text
    assert {trace["type"] for trace in figure["data"]} <= {"bar", "scatter"}


def test_percentiles_draw_a_mark_each_and_keep_the_exact_value_beside_the_drawn_one() -> None:
    traces = {trace["name"]: trace for trace in FIGURES[0]["data"]}
    assert list(traces) == ["p50", "p95", "p99", "max"]
    assert traces["p50"]["y"] == ["orders · 5m", "mails · 1h"]
    assert traces["p50"]["customdata"] == [1.0, -2.0]
    assert traces["p50"]["x"] == [1.0, 0.1]
    assert FIGURES[0]["layout"]["xaxis"]["type"] == "log"


def test_a_spread_stacks_one_colour_per_delay_over_the_same_buckets() -> None:
    first, second = FIGURES[1]["data"]
    assert (first["x"], first["y"]) == (["1–2 ms", "2–5 ms"], [5, 0])
    assert second["x"] == first["x"]
    assert FIGURES[1]["layout"]["showlegend"] is True


def test_a_share_of_no_messages_is_nothing() -> None:
    assert FIGURES[2]["data"][0]["x"] == [0.25, 0]


def test_deaths_are_stacked_by_reason() -> None:
    by_reason = {trace["name"]: (trace["y"], trace["x"]) for trace in FIGURES[4]["data"]}
    assert by_reason == {"rejected": (["orders"], [3]), "maxlen": (["a"], [1])}
