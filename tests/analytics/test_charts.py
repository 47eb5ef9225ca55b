from __future__ import annotations

import json
from typing import Any

import pytest

from analytics.charts import figures as charts
from analytics.charts import svg
from analytics.charts.figures import DAY_MS, days_axis

DAYS = [
    charts.Percentiles("2026-11-20", 0.0, 2.0, 3.0, ("0 ms", "2.0 ms", "3.0 ms")),
    charts.Percentiles("2026-11-21", 1.0, 20.0, 900.0, ("1.0 ms", "20 ms", "900 ms")),
]
PARKED = [("2026-11-20", "rejected", 3), ("2026-11-21", "maxlen", 1)]
FIGURES: list[dict[str, Any]] = [
    charts.over_time(DAYS, ("SLO 1 s", 1000.0)),
    charts.by_delay(DAYS),
    charts.survival([(1, 0.4), (2, 0.1)]),
    charts.dead_letters(PARKED, {"2026-11-20": True, "2026-11-21": True}),
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


def test_a_percentile_of_zero_is_drawn_at_the_end_of_the_axis_and_said_beside_it() -> None:
    traces = {trace["name"]: trace for trace in FIGURES[0]["data"]}
    assert list(traces) == ["p50", "p95", "p99", "SLO 1 s"]
    assert traces["SLO 1 s"]["y"] == [1000.0, 1000.0]
    assert traces["p50"]["y"] == [0.5, 1.0]
    assert traces["p50"]["customdata"] == ["0 ms", "1.0 ms"]
    assert FIGURES[0]["layout"]["yaxis"]["type"] == "log"


def test_survival_begins_with_all_messages() -> None:
    (line,) = FIGURES[2]["data"]
    assert (line["x"], line["y"]) == ([0, 1, 2], [1.0, 0.4, 0.1])


def test_dead_letters_are_stacked_by_reason_over_all_days() -> None:
    by_reason = {trace["name"]: trace["y"] for trace in FIGURES[3]["data"]}
    assert by_reason == {"maxlen": [0, 1], "rejected": [3, 0]}


def test_days_without_figures_and_percentiles_of_too_few_are_gaps() -> None:
    few = charts.Percentiles("2026-11-22", 1.0, texts=("1.0 ms of 9", "", ""))
    drawn = charts.over_time([*DAYS, charts.Percentiles("2026-11-23"), DAYS[1], few], None)
    p50, _, p99 = drawn["data"]
    assert p50["y"] == [0.5, 1.0, None, 1.0, 1.0]
    assert p99["y"] == [3.0, 900.0, None, 900.0, None]
    assert svg.draw(drawn, "x").count("M") >= 6
    bars = charts.dead_letters(
        PARKED, {"2026-11-20": True, "2026-11-21": True, "2026-11-22": False}
    )
    assert {trace["name"]: trace["y"] for trace in bars["data"]} == {
        "maxlen": [0, 1, None],
        "rejected": [3, 0, None],
    }
    assert svg.draw(bars, "x").count("<rect") == 4
    assert svg.draw(charts.by_delay([few]), "x").count("<circle") == 4


def test_the_axis_of_a_few_days_names_each_day_once() -> None:
    one = charts.over_time(DAYS[:1], None)
    assert one["layout"]["xaxis"]["dtick"] == DAY_MS
    assert "dtick" not in days_axis(28)


def test_a_count_has_no_tick_between_whole_numbers() -> None:
    drawn = svg.draw(
        charts.dead_letters([("2026-11-20", "rejected", 1)], {"2026-11-20": True}), "x"
    )
    assert ">0.5</text>" not in drawn
    assert ">1</text>" in drawn
