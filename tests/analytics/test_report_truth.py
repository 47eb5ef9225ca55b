"""Every figure of every table of a report, by broker, topology, pattern, destination and range.

Spark, the database and the tables of reports against plain Python: one generated log, computed
once.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from analytics import launch
from analytics.launch import Result
from analytics.models import Slo
from analytics.results import read
from analytics.results.contents import shown_sections
from analytics.results.load import replace_day
from analytics.results.period import Period
from tests.analytics import truth_log
from tests.analytics.builders import results_in, write_log
from tests.analytics.truth import Truth, count
from tests.analytics.truth_log import DAYS, PLACES
from tests.analytics.truth_sections import PERCENT, TARGET, WITHIN_MS, Cut, rows_of
from tests.analytics.warm_spark import RunModule
from topology.models import Broker, Topology

NAMES = {place.topology: f"The {place.topology}" for place in PLACES}
# Equal counts come in any order.
UNORDERED = ("causes", "handled")


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory, warm: RunModule) -> Sequence[Result]:
    folder = tmp_path_factory.mktemp("truth")
    write_log(folder, truth_log.a_log())
    with pytest.MonkeyPatch.context() as patch:
        now = ["--now", truth_log.NOW.isoformat()]

        def run_module(module: str, arguments: Sequence[str], **more: Any) -> None:
            warm(module, [*arguments, *now], **more)

        patch.setattr(launch, "run_module", run_module)
        parking = {place.broker: [place.parking] for place in PLACES if place.parking}
        url = results_in(folder)
        return [
            launch.run_day(folder, day.date(), url, pulse=lambda *_: None, parking=parking)
            for day in DAYS
        ]


@pytest.fixture(scope="session")
def truth() -> Truth:
    return count(truth_log.a_log())


@pytest.fixture
def loaded(db: None, results: Sequence[Result], settings: Any) -> None:
    settings.NIGHTLY_TIME_ZONE = "UTC"
    brokers = {
        slug: Broker.objects.create(slug=slug, name=slug, amqp_addresses="h", management_urls="u")
        for slug in sorted({place.broker for place in PLACES})
    }
    for place in PLACES:
        params = {"name": place.topology} if place.pattern == "retry_pair" else {}
        own = {"kind": place.pattern, "name": NAMES[place.topology], "params": params}
        Topology.objects.create(broker=brokers[place.broker], slug=place.topology, **own)
    target = Topology.objects.get(slug=TARGET)
    Slo.objects.create(topology=target, percent=PERCENT, within_ms=WITHIN_MS)
    observed = [place.topology for place in PLACES if place.parking]
    for day, result in zip(DAYS, results, strict=True):
        replace_day(day.date(), result, observed=observed)


def cuts() -> Iterator[Cut]:
    for days in (DAYS[:1], DAYS[1:], DAYS):
        yield Cut(days)
        for broker in sorted({place.broker for place in PLACES}):
            yield Cut(days, broker)
        for place in PLACES:
            yield Cut(days, topology=place.topology)
            for destination in place.destinations:
                yield Cut(days, topology=place.topology, destination=destination)
                yield Cut(days, place.broker, destination=destination)
        for pattern in sorted({place.pattern for place in PLACES}):
            yield Cut(days, pattern=pattern)
            yield Cut(days, pattern=pattern, destination="bill")
        yield Cut(days, destination="bill")


def test_every_figure_of_every_table_is_that_of_plain_python(loaded: None, truth: Truth) -> None:
    for cut in cuts():
        period = Period("custom", cut.days[0].date(), cut.days[-1].date())
        brokers = Broker.objects.filter(slug__contains=cut.broker)
        selection = read.Selection(cut.topology, cut.pattern, cut.destination)
        found = read.report(period, brokers, selection)
        for day, figures in found.days.items() if selection.has_retries else ():
            # What changes are found by.
            assert figures.by("first_failures_by_hour") == first_failures(truth, day, cut)
        shown = shown_sections(found)
        expected = rows_of(truth, cut, NAMES)
        assert shown.keys() == expected.keys()
        for key, section in shown.items():
            assert_equal_rows(key, [list(row) for row in section.rows], expected[key], cut)


def first_failures(truth: Truth, day: date, cut: Cut) -> Counter[str | int]:
    return Counter(
        event.recorded_at.hour
        for at, place, event in truth.failures
        if at.date() == day and cut.has(place) and (event.kind, event.attempt) == ("scheduled", 1)
    )


def test_a_csv_file_has_the_rows_of_its_table(loaded: None, truth: Truth, client: Client) -> None:
    client.force_login(User.objects.create_superuser("admin"))
    first, last = (str(day.date()) for day in DAYS)
    for key, expected in rows_of(truth, Cut(DAYS, topology=TARGET), NAMES).items():
        query = {"from": first, "to": last, "topology": NAMES[TARGET]}
        text = client.get(f"/reports/{key}.csv", query).content.decode()
        header, *rows = csv.reader(StringIO(text))
        if key in UNORDERED:
            rows, expected = sorted(rows), sorted(expected)
        for cells, wanted in zip(rows, expected, strict=True):
            assert len(cells) == len(header)
            for cell, value in zip(cells, wanted, strict=True):
                is_number = isinstance(value, int | float)
                assert (float(cell) == pytest.approx(value)) if is_number else cell == (value or "")


def assert_equal_rows(key: str, rows: list[list[Any]], expected: list[list[Any]], cut: Cut) -> None:
    if key in UNORDERED:
        rows, expected = sorted(rows), sorted(expected)
    assert len(rows) == len(expected), (cut, key, rows, expected)
    for row, wanted in zip(rows, expected, strict=True):
        expected_row = [
            pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
            for value in wanted
        ]
        assert row == expected_row, (cut, key)
