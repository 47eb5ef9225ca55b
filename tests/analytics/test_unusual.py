"""What is called unusual about a day: found where it is, and seldom where nothing is."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from analytics import buckets
from analytics.models import DayFigures, UnusualChange
from analytics.models.results import Unusual
from analytics.results.annotations import Mark, add_annotation, find_first_versions
from analytics.results.contents import contents
from analytics.results.figures import EXHAUSTED, Figures
from analytics.results.load import Cut, figures_by_cut, replace_day
from analytics.results.nightly_report import as_json
from analytics.results.period import Period
from analytics.results.read import Report, Selection, report
from analytics.results.summary import (
    _versions,
    describe_unusual,
    difference_interval,
    explain_unknown,
    wilson,
)
from analytics.results.unusual import Comparison, compare, is_unlikely, judge, select_unusual
from tests.analytics import result_rows
from topology.models import Broker

DAY = date(2026, 11, 20)
ONE = timedelta(days=1)
HOURLY = (2, 1, 1, 1, 1, 2, 6, 12, 20, 26, 28, 27, 24, 25, 28, 27, 24, 18, 14, 10, 8, 6, 4, 3)
# A night hour of the smallest topology has a message or two, an hour of the largest thousands.
SIZES = (1, 5, 40)


class Generator:
    """Days of one topology on which nothing happens: hours, weekdays and days differ, and counts
    scatter more than by Poisson, as those of real services do.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.size = SIZES[seed % len(SIZES)]
        self.failing = self.chance.choice((0.002, 0.02, 0.1))

    def day(self, day: date, *, late: float = 1.0, failing: float = 1.0) -> Figures:
        """Between 02:00 and 03:00 `late` and `failing` times as much as usual."""
        chance, figures = self.chance, Figures()
        volume = self.size * (0.3 if day.weekday() >= 5 else 1.0) * chance.lognormvariate(0, 0.2)
        bad = self.failing * chance.lognormvariate(0, 0.2)
        for hour, weight in enumerate(HOURLY):
            entered = self.poisson(volume * weight)
            figures.counts["messages"][()] += 10 * entered
            share = bad * chance.lognormvariate(0, 0.2) * (failing if hour == 2 else 1)
            failed = self.poisson(10 * entered * share)
            if failed:
                figures.counts["first_failures_by_hour"][(hour,)] += failed
                figures.counts["outcomes"][1, 3, EXHAUSTED] += self.poisson(failed * 0.1)
            slow = chance.lognormvariate(0, 0.2) * (late if hour == 2 else 1)
            for _ in range(entered):
                ms = chance.lognormvariate(2.5, 1.0) * slow
                figures.counts["late_by_hour"][hour, buckets.bucket_of(ms)] += 1
        return figures

    def poisson(self, mean: float) -> int:
        if mean > 50:
            return max(0, round(self.chance.gauss(mean, mean**0.5)))
        passed, number = self.chance.expovariate(1), 0
        while passed < mean:
            passed, number = passed + self.chance.expovariate(1), number + 1
        return number


def nights(seeds: range, length: int) -> Iterator[list[Comparison]]:
    """What is found on each night; all topologies of a night are judged together."""
    of = {seed: (Generator(seed), dict[date, Figures]()) for seed in seeds}
    for number in range(28 + length):
        day, tests = DAY + number * ONE, list[Comparison]()
        for seed, (generator, known) in of.items():
            now = generator.day(day)
            if number >= 28:
                tests += compare(day, "b", f"t{seed}", now, known)
            known[day] = now
            known.pop(day - 28 * ONE, None)
        if number >= 28:
            yield select_unusual(tests)


def test_chances_are_judged_together() -> None:
    """The example of Benjamini and Hochberg (1995), section 3.2: four of fifteen at 5 %."""
    chances = [
        *(0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344),
        *(0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0000),
    ]
    assert is_unlikely(chances, 0.05) == [True] * 4 + [False] * 11


def test_a_count_is_judged_by_what_scatters() -> None:
    even = judge((30, 1), [(10, 1)] * 28)
    uneven = judge((30, 1), [(5, 1), (15, 1), (20, 1), (0, 1)] * 7)
    assert even
    assert uneven
    assert even.score > 4 > 3 > uneven.score > 1
    low, high = even.usual
    assert low < 10 < high < 20
    # An outbreak of the past weighs little.
    after = judge((30, 1), [(10, 1)] * 26 + [(200, 1)] * 2)
    assert after
    assert after.score > 3
    assert judge((30, 1), [(10, 1)] * 6) is None
    assert judge((5, 0), [(10, 1)] * 28) is None


def test_what_happens_in_one_hour_is_found() -> None:
    generator = Generator(2)
    before = {DAY - n * ONE: generator.day(DAY - n * ONE) for n in range(1, 29)}
    now = generator.day(DAY, late=40, failing=20)
    found = select_unusual(list(compare(DAY, "b", "t", now, before)))
    assert {(one.kind, one.hour) for one in found} >= {
        (Unusual.LATENESS, 2),
        (Unusual.FAILURES, 2),
    }
    few = dict(list(before.items())[:6])
    assert list(compare(DAY, "b", "t", now, few)) == []


def failing(messages: int, failures: int) -> Figures:
    figures = Figures()
    figures.counts["messages"][()] = messages
    for hour in range(24):
        figures.counts["first_failures_by_hour"][(hour,)] = failures
    return figures


def test_days_without_first_failures_are_usual_and_days_that_did_not_count_them_unknown() -> None:
    """On both only messages failed that had failed on the day before."""
    retried = {
        **{"broker": "b", "topology": "t", "destination": "orders", "queue": "orders"},
        **{"reason": "rejected", "exception_type": "", "routing_key": "orders", "messages": 3},
    }
    tables = defaultdict[str, list[dict[str, Any]]](list, causes=[retried])

    def compared(before: Callable[[], Figures]) -> set[Unusual]:
        days = {DAY - n * ONE: before() for n in range(1, 29)}
        return {one.kind for one in compare(DAY, "b", "t", failing(0, 20), days)}

    def not_counted() -> Figures:
        figures = Figures()
        figures.counts["causes"]["orders", "rejected", "", "orders"] = 3
        return figures

    def stored() -> Figures:
        figures = Figures()
        figures.add_stored(figures_by_cut(tables, {}, ())[Cut("b", "t")].stored())
        return figures

    assert Unusual.FAILURES in compared(stored)
    assert Unusual.FAILURES not in compared(not_counted)


def test_rates_are_never_compared_with_counts() -> None:
    days = [DAY - n * ONE for n in range(1, 29)]
    # Messages are recorded since 14 days.
    before = {day: failing(50_000 if n < 14 else 0, 20) for n, day in enumerate(days)}

    def failures(now: Figures) -> list[Comparison]:
        found = select_unusual(list(compare(DAY, "b", "t", now, before)))
        return [one for one in found if one.kind == Unusual.FAILURES]

    assert len(failures(failing(50_000, 5000))) == 24
    assert failures(failing(50_000, 20)) == []
    assert len(failures(failing(0, 5000))) == 24
    assert failures(failing(0, 20)) == []


def test_what_was_not_recorded_says_nothing_of_what_is_usual() -> None:
    days = [DAY - n * ONE for n in range(1, 29)]
    before = {day: failing(50_000, 20 if n < 14 else 0) for n, day in enumerate(days)}
    begins = [datetime(day.year, day.month, day.day, tzinfo=UTC) for day in days[14:]]
    unrecorded = {begin + timedelta(hours=hour) for begin in begins for hour in range(24)}
    for one in compare(DAY, "b", "t", failing(50_000, 20), before, unrecorded):
        assert one.verdict.compared <= 14
        assert one.kind != Unusual.FAILURES or 19 < one.verdict.expected < 21


def test_the_date_of_an_hour_is_that_of_the_zone(settings: Any) -> None:
    settings.NIGHTLY_TIME_ZONE = "Europe/Berlin"
    row = UnusualChange(day=DAY, broker="b", topology="t", kind="failures", observed=50, sample=1)
    row.hour = row.first_hour = row.last_hour = 23
    row.usual_low, row.usual_high, row.compared = 0, 3, 12
    (sentence,) = describe_unusual(
        Report(Period("custom", DAY, DAY), Selection(), {}, {}, [], {}, [], unusual=[row])
    )
    assert sentence.text.startswith("On 21 November between 00:00 and 01:00 (Europe/Berlin), t: ")


def test_false_alarms_are_below_one_a_month_and_topology() -> None:
    assert sum(map(len, nights(range(3), 30))) <= 3


def test_an_unusual_night_heads_the_report(broker: Broker) -> None:
    days = [DAY - n * ONE for n in reversed(range(1, 29))]
    group = {"broker": broker.slug, "topology": "orders"}
    result_rows.days(days, [group])
    quiet = report(Period("custom", days[-1], days[-1]), [broker])
    assert (list(quiet.unusual), quiet.days_recorded) == ([], 27)
    assert [*describe_unusual(quiet), *explain_unknown(quiet)] == []
    result = result_rows.a_result(DAY, [group], late_ms=60_000.0)
    rows: Any = result.tables["histogram"]
    for row in rows:
        if row["bucket"] == buckets.bucket_of(60_000.0):
            row["messages"] = 50
    replace_day(DAY, result)
    found = report(Period("custom", DAY, DAY), [broker])
    first = next(describe_unusual(found))
    assert (first.headline, first.topology) == ("Unusual: late deliveries.", "orders")
    assert "On 20 November between 02:00 and 03:00 (UTC), orders: " in first.text
    assert "deliveries were later than" in first.text
    assert contents(found)["sentences"][0] == first
    document = as_json(found)
    assert document["unusual"][0]["kind"] == "lateness"
    assert document["unusual"][0]["hour"] == 2
    assert document["summary"][0]["headline"] == first.headline
    # A day that is computed again is compared again.
    result_rows.days([DAY], [group])
    assert not report(Period("custom", DAY, DAY), [broker]).unusual


def test_too_few_days_are_unknown(broker: Broker) -> None:
    days = [DAY - n * ONE for n in range(4)]
    result_rows.days(days, [{"broker": broker.slug, "topology": "orders"}], late_ms=60_000.0)
    found = report(Period("custom", DAY, DAY), [broker])
    (sentence,) = explain_unknown(found)
    assert sentence.headline == "Not everything is compared with earlier days."
    assert sentence.text == "3 days recorded of the 28 before 20 November. 7 are needed."


def test_kinds_that_were_not_compared_are_unknown(broker: Broker, admin_client: Client) -> None:
    days = [DAY - n * ONE for n in reversed(range(1, 9))]
    result_rows.days(days, [{"broker": broker.slug, "topology": "orders"}])
    for old in DayFigures.objects.all():
        # As an earlier version stored it.
        figures = json.loads(old.figures)
        for name in ("failures", "first_failures", "dead_letters"):
            figures.pop(f"{name}_by_hour", None)
        figures.pop("counted", None)
        old.figures = json.dumps(figures)
        old.save()
    result_rows.days([DAY], [{"broker": broker.slug, "topology": "orders"}])
    (sentence,) = explain_unknown(report(Period("custom", DAY, DAY), [broker]))
    assert sentence.headline == "Not everything is compared with earlier days."
    assert sentence.text == (
        "Failures: 0 of 1 day compared. Dead letters: 0 of 1 day compared. 7 of the 28 days before "
        "need these figures."
    )
    result_rows.days(
        [DAY], [{"broker": broker.slug, "topology": name} for name in ("orders", "new")]
    )
    period, new = Period("custom", DAY, DAY), Selection(topology="new")
    (sentence,) = explain_unknown(report(period, [broker], new))
    assert sentence.text.startswith("0 days recorded of the 28")
    (sentence,) = explain_unknown(report(period, [broker], Selection(destination="work")))
    assert sentence.text == "Messages of one destination are not compared with earlier ones."
    page = admin_client.get(f"/reports/?from={DAY}&to={DAY}&topology=new").content.decode()
    assert "No rule found" not in page


def by_version(**counts: tuple[int, int]) -> Figures:
    figures = Figures()
    for name, (failed, of) in counts.items():
        for what, number in (("messages", of), ("retried", failed)):
            figures.counts["group_messages"]["version", name, what] = number
    return figures


def test_versions_differ_where_the_interval_says_so() -> None:
    """Newcombe (1998), example (a) of table II: 56 of 70 and 48 of 80."""
    low, high = difference_interval(48, 80, 56, 70)
    assert (round(low, 4), round(high, 4)) == (0.0524, 0.3339)
    # Wilson, 81 of 263, as table I of Newcombe's first paper.
    assert [round(one, 4) for one in wilson(81, 263)] == [0.2553, 0.3662]
    days = {DAY: by_version(old=(54, 1000)), DAY + ONE: by_version(new=(93, 1000))}
    (sentence,) = _versions("orders", days)
    assert sentence.text == (
        "orders: old fails 5.4 % (of 1 000), new 9.3 % (of 1 000). new fails 1.6 to 6.2 "
        "points more (95 % confidence)."
    )
    assert list(_versions("orders", {DAY: by_version(old=(54, 1000), new=(60, 1000))})) == []
    assert list(_versions("orders", {DAY: by_version(old=(1, 99), new=(60, 100))})) == []


def test_a_version_that_is_new_is_a_deploy() -> None:
    days = {
        DAY: by_version(a=(0, 1)),
        DAY + ONE: by_version(a=(0, 1), b=(0, 1)),
        DAY + 2 * ONE: by_version(b=(0, 1), c=(0, 1)),
    }
    assert [(one.at.date(), one.version) for one in find_first_versions(days, DAY, [])] == [
        (DAY + ONE, "b"),
        (DAY + 2 * ONE, "c"),
    ]
    told = Mark(datetime(2026, 11, 22, 9, tzinfo=UTC), None, "deploy", "shop", "c")
    assert len(find_first_versions(days, DAY, [told])) == 1


def test_a_version_that_paused_is_not_new(broker: Broker) -> None:
    versions = {28: ("a", "weekly"), 2: ("a",), 0: ("a", "weekly", "b")}
    for ago, names in versions.items():
        figures = by_version(**dict.fromkeys(names, (0, 1)))
        sums = dict.fromkeys(("measured", "messages", "retried", "exhausted", "entered"), 0)
        DayFigures.objects.create(
            day=DAY - ago * ONE, broker=broker.slug, figures=figures.stored(), unexplained=0, **sums
        )
    at = datetime(2026, 11, 19, 12, tzinfo=UTC)
    add_annotation(None, text="earlier", at=at.isoformat())
    found = report(Period("custom", DAY - ONE, DAY), [broker])
    assert [one.version or one.text for one in found.annotations] == ["earlier", "b"]


@pytest.mark.long
def test_false_alarms_of_years() -> None:
    """docs/reports.md has the number."""
    found = Counter(one.kind for night in nights(range(12), 360) for one in night)
    per_month = sum(found.values()) / (12 * 12)
    print(f"{per_month:.3f} false alarms a month and topology: {found}")
    assert per_month < 0.2
