"""The cause of a missed target: of figures with a known cause, the rules name this cause."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta

import pytest

from analytics import buckets
from analytics.models import Slo
from analytics.results.figures import Figures
from analytics.results.misses import Miss, explain_miss, list_misses
from analytics.results.period import Period
from analytics.results.read import Report, Selection, TopologyRow
from analytics.results.slo import Attainment

FIRST = date(2026, 11, 1)
IN_TIME, LATE = buckets.bucket_of(20), buckets.bucket_of(5000)
SHORT, LONG = 1, 4


def a_day(
    late_hours: Mapping[int, int] | None = None, late_delays: Mapping[int, int] | None = None
) -> Figures:
    """100 deliveries in time in each hour, few of them with the long delay, and the late ones."""
    figures = Figures()
    by_hour, by_delay = figures.counts["late_by_hour"], figures.counts["late_by_delay"]
    by_hour.update({(hour, IN_TIME): 100 for hour in range(24)})
    by_hour.update({(hour, LATE): number for hour, number in (late_hours or {}).items()})
    by_delay.update({(SHORT, IN_TIME): 2200, (LONG, IN_TIME): 200})
    number = sum((late_hours or {}).values())
    delays = late_delays or {SHORT: number}
    by_delay.update({(delay, LATE): late for delay, late in delays.items()})
    return figures


def a_report(*days: Figures, destinations: Mapping[str, tuple[int, int]] | None = None) -> Report:
    last = FIRST + timedelta(days=len(days) - 1)
    return Report(
        period=Period("custom", FIRST, last),
        selection=Selection("orders"),
        days={FIRST + timedelta(days=number): one for number, one in enumerate(days)},
        previous={},
        topologies=(),
        suspects={},
        unexplained=(),
        slo=Slo(percent=99, within_ms=1000),
        destinations=destinations or {},
    )


def explained(*days: Figures, destinations: Mapping[str, tuple[int, int]] | None = None) -> Miss:
    found = explain_miss(a_report(*days, destinations=destinations))
    assert found is not None
    return found


def test_an_outage_of_three_hours_is_the_cause() -> None:
    outage = a_day({14: 80, 15: 100, 16: 70, 3: 1})
    miss = explained(a_day(), a_day(), outage, a_day({5: 2}))
    assert miss.sentence == (
        "253 of 9\u202f853 measured deliveries were later than 1s. 98.8 % of them entered on "
        "3 November between 14:00 and 17:00 (UTC)."
    )
    # The link finds the messages of the worst hour of that day alone.
    hours = miss.parts[0]
    assert (hours.late, hours.measured) == (250, 550)
    assert hours.query.endswith(
        f"late_from={buckets.bucket_of(1000)}&hour=15%3A00&from=2026-11-03&to=2026-11-03"
    )


def test_the_same_hour_of_each_day_is_the_cause() -> None:
    miss = explained(*(a_day({9: 40}) for _ in range(7)))
    assert "All of them entered in the hour from 09:00 (UTC) on 7 days." in miss.sentence


def test_one_destination_is_the_cause() -> None:
    spread = a_day(dict.fromkeys(range(24), 5))
    miss = explained(spread, destinations={"mails": (114, 400), "orders.eu": (6, 2120)})
    assert miss.sentence.endswith("95.0 % of them went to mails.")
    assert "destination=mails" in miss.parts[-2].query


def test_one_requested_delay_is_the_cause() -> None:
    spread = a_day(dict.fromkeys(range(24), 5), {LONG: 110, SHORT: 10})
    miss = explained(spread, destinations={"orders": (120, 2520)})
    assert miss.sentence.endswith("91.7 % of them had a requested delay of 5m–1h.")
    assert f"delay={LONG}" in miss.parts[-1].query


def test_lateness_without_a_pattern_concerns_the_whole_topology() -> None:
    miss = explained(
        a_day(dict.fromkeys(range(24), 5)), destinations={"a": (60, 1260), "b": (60, 1260)}
    )
    assert miss.sentence.endswith("so the cause concerns the whole topology.")


def test_a_target_that_was_met_has_no_cause() -> None:
    assert explain_miss(a_report(a_day({3: 2}))) is None
    assert list_misses(a_report(a_day({3: 2})), None) == []


@pytest.mark.parametrize("late", [30, 300])
def test_without_a_selection_the_topologies_that_missed_are_listed(late: int) -> None:
    row = TopologyRow(
        *("shop", "orders-2", 3000.0, 1000, 0, 0, 0, 0, 0),
        target="99 % within 1s of due",
        attained=Attainment(1000, 1000 - late, 0.01),
    )
    report = a_report(a_day())
    listed = Report(
        **{
            **vars(report),
            "selection": Selection(),
            "topologies": [row],
            "slo": None,
            "names": {"orders-2": "orders"},
        }
    )
    assert explain_miss(listed) is None
    (sentence,) = list_misses(listed, None)
    assert sentence.text == f"orders: {100 - late / 10:.1f} %, target 99 % within 1s of due."
    assert (sentence.topology, sentence.section) == ("orders", "slo")


def test_hours_with_most_deliveries_of_the_day_are_the_cause_of_all_that_are_late() -> None:
    day = Figures()
    counts = {(2, LATE): 22, (2, IN_TIME): 8, (3, LATE): 23, (3, IN_TIME): 7, (9, IN_TIME): 30}
    day.counts["late_by_hour"].update(counts)
    miss = explained(day)
    assert miss.sentence == (
        "45 of 90 measured deliveries were later than 1s. All of them entered on 1 November "
        "between 02:00 and 04:00 (UTC)."
    )
