"""Heat maps of reports: levels by quantile, gaps, and what a cell leads to."""

from __future__ import annotations

import csv
import re
from datetime import UTC, date, datetime, timedelta
from html import unescape
from io import StringIO
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client

from analytics.charts.heat import LEVELS, heat_map
from analytics.models import DayFigures
from analytics.results import read
from analytics.results.annotations import Mark, add_annotation
from analytics.results.contents import contents, events_of
from analytics.results.figures import Figures
from analytics.results.period import Period
from analytics.search.query import parse
from delayboard.dead_letters.search import FIELDS
from tests.analytics import result_rows
from topology.models import Broker

DAY = date(2026, 11, 20)
DAYS = [DAY - timedelta(days=1), DAY]
GROUP = {"broker": "main", "topology": "orders"}


def test_one_extreme_cell_leaves_the_others_their_levels() -> None:
    numbers: list[int | None] = [0, 1, 2, 3, 4, 5, 1_000_000, None]
    columns = [(str(place), "") for place in range(len(numbers))]
    ((_, cells),) = heat_map("", columns, [("row", [(number, "") for number in numbers])], {}).rows
    assert [cell.level for cell in cells] == [0, 1, 2, 3, 4, 5, LEVELS, "gap"]
    assert [cell.text for cell in cells] == ["", "1", "2", "3", "4", "5", "1M", ""]
    assert cells[-1].description == "7, row: not counted"


def test_no_count_is_longer_than_four_characters() -> None:
    for number in (1, 999, 1000, 1249, 9999, 99_999, 999_999, 1_000_000, 99_999_999, 999_999_999):
        (_, (cell,)) = heat_map("", [("x", "x")], [("y", [(number, "")])], {}).rows[0]
        assert len(cell.text) <= 4, cell.text


def in_csv(client: Client, key: str, *days: date) -> list[list[str]]:
    answer = client.get(f"/reports/{key}.csv?from={days[0]}&to={days[-1]}")
    return list(csv.reader(StringIO(answer.content.decode())))


def test_the_cells_of_a_day_and_of_its_hours_add_up_to_what_was_measured(
    broker: Broker, admin_client: Client
) -> None:
    result_rows.days(DAYS, [GROUP])
    _, *of_days = in_csv(admin_client, "lateness_map", *DAYS)
    _, *of_hours = in_csv(admin_client, "lateness_map", DAY)
    _, *rows = in_csv(admin_client, "lateness", *DAYS)
    measured = {day: int(number) for day, number, *_ in rows}
    assert {day: sum(map(int, cells)) for day, *cells in of_days} == measured
    assert len(of_hours) == 24
    assert sum(int(n) for _, *cells in of_hours for n in cells) == measured[str(DAY)]


def test_a_day_without_counts_by_hour_is_a_gap(broker: Broker) -> None:
    result_rows.days(DAYS, [GROUP])
    old = DayFigures.objects.get(day=DAYS[0], topology="", pattern="", destination="")
    # As an earlier version stored it.
    old.figures = re.sub(r'"(failures|dead_letters)_by_hour":\[.*?\]\],', "", old.figures)
    old.save()
    period = Period("custom", DAYS[0] - timedelta(days=1), DAY)
    sections = contents(read.report(period, [broker]))["sections"]
    for key, total in (("failures_map", 665), ("dead_letters_map", None)):
        rows = sections[key].rows
        assert [row[0] for row in rows] == [str(DAY)]
        assert total is None or sum(rows[0][1:]) == total
        heat = sections[key].heat
        assert [[cell.level == "gap" for cell in cells] for _, cells in heat.rows] == [
            [True, True, False]
        ] * 24


def test_cells_lead_to_the_retries_or_parked_messages_of_their_hour(
    broker: Broker, admin_client: Client, settings: Any
) -> None:
    settings.NIGHTLY_TIME_ZONE = "Asia/Kolkata"
    result_rows.days(DAYS, [GROUP])
    address = f"/reports/?from={DAYS[0]}&to={DAY}&broker=main&view="
    text = admin_client.get(f"{address}dead-letters").content.decode()
    links = [unescape(one) for one in re.findall(r'<td[^>]*><a href="(/[^"]+)"', text)]
    queries = [parse_qs(urlsplit(link).query)["q"][0] for link in links]
    assert f'parked:>="{DAY} 09:00" parked:<"{DAY} 10:00" state:any' in queries
    for query in queries:
        parse(query, datetime.now(UTC), FIELDS)
    assert admin_client.get(links[0]).status_code == 200
    # A day of UTC has hours of UTC.
    assert re.search(rf'title="{DAY}, 09:00 UTC: \d+"', text)


def test_rates_are_named_by_their_work_queue(topology: Any, admin_client: Client) -> None:
    result_rows.days([DAY], [{"broker": topology.broker.slug, "topology": topology.slug}])
    head, row = in_csv(admin_client, "rates", DAY)
    assert head == ["Queue", "Messages", "Retried", "Retry rate"]
    assert row[0] == topology.pattern.targets(topology.parsed)[0]
    assert float(row[3]) == pytest.approx(int(row[2]) / int(row[1]))


def test_annotations_stand_in_the_charts_of_their_day_or_hour(
    broker: Broker, settings: Any, admin_client: Client
) -> None:
    settings.NIGHTLY_TIME_ZONE = "Asia/Kolkata"
    result_rows.days(DAYS, [GROUP])
    at = datetime(DAY.year, DAY.month, DAY.day, 9, 30, tzinfo=UTC)
    for number in range(7):
        add_annotation(None, text=f"shop <{number}>", at=at.isoformat())
    text = "\n".join([*(f"15:00 deploy: shop <{number}>" for number in range(5)), "and 2 more"])
    assert events_of(read.report(Period("custom", *DAYS), [broker])) == {str(DAY): text}
    of_day = read.report(Period("custom", DAY, DAY), [broker])
    assert events_of(of_day) == {"14:30": text}
    page = admin_client.get(f"/reports/?from={DAYS[0]}&to={DAY}").content.decode()
    assert page.count('<g class="event"') == 1
    assert page.count('class="has-event"') == 1
    assert "deploy: shop &lt;0&gt;" in page
    assert "shop <0>" not in page


def test_what_lasts_for_days_is_marked_on_each_with_its_dates(settings: Any) -> None:
    settings.NIGHTLY_TIME_ZONE = "Europe/Berlin"
    begin = datetime(2026, 11, 17, 10, tzinfo=UTC)
    marks = [
        Mark(begin, begin + timedelta(days=2, hours=1), "outage", "down"),
        Mark(datetime(2026, 11, 20, 23, 30, tzinfo=UTC), None, "deploy", "v2"),
        Mark(datetime(2026, 11, 20, tzinfo=UTC), datetime(2026, 11, 21, tzinfo=UTC), "deploy", "x"),
    ]
    period = Period("custom", date(2026, 11, 18), date(2026, 11, 22))
    assert events_of(a_report(period, annotations=marks)) == {
        "2026-11-18": "17 November 11:00–19 November 12:00 outage: down",
        "2026-11-19": "17 November 11:00–12:00 outage: down",
        "2026-11-20": "21 November 00:30 deploy: v2\n01:00–21 November 01:00 deploy: x",
    }


def a_report(period: Period, days: read.Days | None = None, **changes: Any) -> read.Report:
    return read.Report(period, read.Selection(), days or {}, {}, [], {}, [], **changes)


@pytest.mark.parametrize(
    ("day", "label", "hours"),
    [(date(2026, 10, 25), "02:00", (0, 1)), (date(2026, 3, 29), "01:00", (0, 23))],
)
def test_an_hour_that_the_clocks_repeat_counts_both(
    settings: Any, day: date, label: str, hours: tuple[int, int]
) -> None:
    settings.NIGHTLY_TIME_ZONE = "Europe/Berlin"
    figures = Figures()
    for hour, number in zip(hours, (100, 7), strict=True):
        figures.counts["late_by_hour"][hour, 20] = number
    sections = contents(a_report(Period("custom", day, day), {day: figures}))["sections"]
    rows = {row[0]: row[1:] for row in sections["lateness_map"].rows}
    assert (len(rows), rows[label]) == (23, [107])
    (cells,) = (cells for _, cells in sections["lateness_map"].heat.rows)
    assert [cell.text for cell in cells if cell.text] == ["107"]
    assert "of 107" in str(sections["lateness"].figure)


def test_hours_of_an_outage_are_no_zeros(settings: Any) -> None:
    settings.NIGHTLY_TIME_ZONE = "Europe/Berlin"
    begin = datetime(2026, 11, 20, 2, 30, tzinfo=UTC)
    outage = Mark(begin, begin + timedelta(hours=3), "outage", "down")
    figures = Figures()
    for hour in (1, 4):
        figures.counts["late_by_hour"][hour, 20] = 9
        figures.counts["failures_by_hour"][(hour,)] = 9
    found = a_report(Period("custom", DAY, DAY), {DAY: figures}, annotations=[outage])
    sections = contents(found)["sections"]
    # Of the hours from 02:00 to 05:00 (UTC) two are covered, and one of these has counts.
    assert sections["failures_map"].rows[0][1:8] == [0, 9, 0, None, 9, 0, 0]
    assert [row[1] for row in sections["lateness_map"].rows][:7] == [0, 9, 0, None, 9, 0, 0]
    assert sections["lateness_map"].rows[3][0] == "04:00"
