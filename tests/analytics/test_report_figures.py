"""Sums, survival and the sentences of a summary, on small figures whose answer is known."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from analytics import buckets
from analytics.models.results import Within
from analytics.results.contents import key_figures
from analytics.results.figures import RECOVERED, Figures
from analytics.results.period import Period, read_period
from analytics.results.slo import attainment
from analytics.results.summary import is_doubled, summarize

FIRST = date(2026, 11, 1)
NEWEST = date(2026, 11, 22)


def some(**tables: dict[tuple[str | int, ...], int]) -> Figures:
    figures = Figures()
    for table, counts in tables.items():
        figures.counts[table].update(counts)
    return figures


def days(*figures: Figures) -> dict[date, Figures]:
    return {FIRST + timedelta(days=n): one for n, one in enumerate(figures)}


def sentences(of: dict[date, Figures], topology: str = "orders") -> list[str]:
    total = Figures()
    for figures in of.values():
        total.add(figures)
    period = Period("custom", FIRST, FIRST + timedelta(days=len(of) - 1))
    found = summarize(period, total, of, {topology: of}, 100)
    return [f"{one.headline} {one.text}" for one in found]


def test_figures_are_the_same_after_they_were_stored_and_add_up() -> None:
    one = some(late_by_hour={(2, 5): 3}, messages={(): 8}, outcomes={(1, 2, RECOVERED): 4})
    again = Figures()
    again.add_stored(one.stored())
    assert again.counts == one.counts
    again.add(one)
    assert (again.measured, again.messages, again.outcome(RECOVERED)) == (6, 16, 8)


def test_survival_is_the_kaplan_meier_estimate_with_open_messages_censored() -> None:
    """Nine ended attempt 1: 4 recover, 1 waits in it. Of 5 two recover, 1 is parked; 2 wait."""
    ways: dict[tuple[str | int, ...], int]
    ways = {(1, 1, RECOVERED): 4, (1, 0, "open"): 1, (1, 2, RECOVERED): 2}
    ways |= {(1, 2, "exhausted"): 1, (1, 2, "open"): 2}
    steps = some(outcomes=ways).survival()
    assert [(s.attempt, s.at_risk, s.recovered, s.censored) for s in steps] == [
        *[(1, 9, 4, 1), (2, 5, 2, 0), (3, 0, 0, 2)]
    ]
    assert [s.failing for s in steps] == pytest.approx([5 / 9, 5 / 9 * 0.6, 5 / 9 * 0.6])


def test_two_days_of_one_message_count_each_of_its_attempts_once() -> None:
    """It fails twice before midnight, and recovers in its third attempt after it."""
    ways: dict[tuple[str | int, ...], int] = {(1, 2, "open"): 1, (3, 3, RECOVERED): 1}
    steps = some(outcomes=ways).survival()
    assert [(step.attempt, step.at_risk, step.recovered) for step in steps] == [
        *[(1, 1, 0), (2, 1, 0), (3, 1, 1)]
    ]


def test_an_exhausted_message_counts_as_failing_in_later_attempts() -> None:
    ways: dict[tuple[str | int, ...], int] = {(1, 1, "exhausted"): 5, (1, 2, RECOVERED): 5}
    assert [step.failing for step in some(outcomes=ways).survival()] == [1.0, 0.5]


def late(ms: float, hour_ms: float | None = None) -> Figures:
    by_hour: dict[tuple[str | int, ...], int] = {
        (hour, buckets.bucket_of(ms)): 100 for hour in range(24)
    }
    if hour_ms is not None:
        del by_hour[2, buckets.bucket_of(ms)]
        by_hour[2, buckets.bucket_of(hour_ms)] = 100
    return some(late_by_hour=by_hour)


def test_a_late_night_is_told_with_its_hours() -> None:
    (sentence,) = sentences(days(late(40), late(40), late(40, 2000), late(40)))
    assert sentence.startswith(
        "Late deliveries. On 3 November between 02:00 and 03:00 (UTC), p95 lateness of orders rose "
        "from 50ms to 2.5s."
    )


def test_a_small_or_usual_lateness_is_not_worth_a_sentence() -> None:
    assert sentences(days(late(4), late(4), late(4, 40), late(4))) == []
    assert sentences(days(late(900), late(900), late(900, 1500))) == []


def test_a_late_night_of_one_day_is_found_beside_hours_of_few_messages() -> None:
    counts: dict[tuple[str | int, ...], int] = {
        (hour, buckets.bucket_of(40)): 5 for hour in range(6, 22)
    }
    day = some(late_by_hour=counts | {(2, buckets.bucket_of(2000)): 45})
    (sentence,) = sentences(days(day))
    assert "between 02:00 and 03:00 (UTC), p95 lateness of orders rose from 50ms" in sentence
    assert sentence.endswith("45 deliveries an hour were measured then, 5 in other hours.")


def test_the_early_tail_is_the_error_and_bad_hours_are_told() -> None:
    """Of 200 in an hour one seems 3 ms early, of 200 in the next one 28 seem up to 565 ms early."""
    counts: dict[tuple[str | int, ...], int] = {(hour, buckets.ON_TIME): 200 for hour in (3, 4)}
    early: dict[tuple[str | int, ...], int] = {
        (3, buckets.ON_TIME): 199,
        (3, buckets.bucket_of(3)): 1,
        (4, buckets.ON_TIME): 172,
        (4, buckets.bucket_of(565)): 28,
    }
    day = some(late_by_hour=counts, early_by_hour=early)
    assert day.measure_error(3) == 0
    assert 500 < (day.measure_error(4) or 0) < 630
    assert day.measure_error(5) is None
    assert some(late_by_hour=counts).measure_error() is None
    few = some(early_by_hour={(3, buckets.ON_TIME): 19, (3, buckets.bucket_of(3)): 1})
    assert 2.5 < (few.measure_error(3) or 0) <= 3.15
    (sentence,) = sentences(days(day))
    assert sentence.startswith(
        "Lateness measured badly. In 1 of 2 hours the recorder's error exceeds a tenth of the "
        "target (100ms): up to 6"
    )
    labels = [one.label for one in key_figures(day, Figures())]
    assert "lateness p99 of 400 measured, error 611ms" in labels


def failed(retried: int, messages: int = 1000) -> Figures:
    causes: dict[tuple[str | int, ...], int] = {("billing", "rejected", "TimeoutError", "k"): 9}
    return some(retried={(): retried}, messages={(): messages}, causes=causes)


def test_doubled_failures_are_told_with_the_day_and_the_cause() -> None:
    (sentence,) = sentences(days(*[failed(19)] * 4, *[failed(41)] * 3))
    assert sentence == (
        "More failures. First-time failures of orders rose from 1.9 % to 4.1 % on 5 November. "
        "100.0 % of the failures since: TimeoutError in billing."
    )


@pytest.mark.parametrize(
    ("before", "after"), [((19, 1000), (30, 1000)), ((1, 99), (50, 1000)), ((1, 200), (4, 200))]
)
def test_a_rise_that_is_small_or_may_be_chance_is_not_told(
    before: tuple[int, int], after: tuple[int, int]
) -> None:
    assert not is_doubled(before, after)


def test_attempts_that_never_succeed_are_told_with_their_number() -> None:
    ways: dict[tuple[str | int, ...], int] = {(1, 3, RECOVERED): 50, (1, 5, "exhausted"): 30}
    (sentence,) = sentences(days(some(outcomes=ways)), "webhooks")
    assert sentence.startswith("Attempts after the third never succeed in webhooks (0 of 60).")


def test_retries_that_never_succeed_at_all_are_told() -> None:
    ways: dict[tuple[str | int, ...], int] = {(1, 3, "exhausted"): 30}
    late: dict[tuple[str | int, ...], int] = {(5, buckets.ON_TIME): 90}
    (sentence,) = sentences(days(some(outcomes=ways, late_by_hour=late)), "webhooks")
    assert sentence.startswith("Retries never succeed in webhooks (0 of 90).")
    # Without a recorded delivery nobody knows.
    assert sentences(days(some(outcomes=ways)), "webhooks") == []


def test_unexplained_messages_and_missing_days_are_told() -> None:
    of = days(some(ledger={("unexplained",): 2, ("entered",): 9}))
    period = Period("custom", FIRST, FIRST + timedelta(days=3))
    found = summarize(period, of[FIRST], of, {"orders": of}, 100)
    assert [one.text for one in found] == [
        "2 messages of orders were due without a recorded end.",
        "3 of 4 days have no figures.",
    ]
    assert [one.section for one in found] == ["ledger", "runs"]


def test_key_figures_are_compared_with_the_range_before() -> None:
    now = some(retried={(): 4}, messages={(): 100}, ledger={("entered",): 50})
    before = some(retried={(): 2}, messages={(): 100})
    found = {figure.label: figure for figure in key_figures(now, before)}
    failures = found["first-time failures"]
    assert (failures.value, failures.change, failures.is_worse) == ("4.0 %", "+2.0 points", True)
    assert found["lateness p99 of 0 measured"].value == "–"
    unexplained = found["unexplained of 50 scheduled"]
    assert (unexplained.value, unexplained.change) == ("0", "+0")


def test_counts_are_not_compared_with_those_of_fewer_days() -> None:
    of = some(retried={(): 4}, messages={(): 100}, ledger={("unexplained",): 2})
    found = {figure.section: figure for figure in key_figures(of, of, compares_counts=False)}
    assert (found["ledger"].value, found["ledger"].change, found["ledger"].is_worse) == (
        "2",
        "",
        False,
    )
    assert found["recovery"].change == "+0.0 points"


def test_a_target_has_an_attainment_a_budget_and_a_burn_rate() -> None:
    """Of 1000 deliveries 5 are late, and 1 % may be: half of the budget is left."""
    counts: dict[tuple[str | int, ...], int] = {
        (0, buckets.bucket_of(999)): 995,
        (0, buckets.bucket_of(1000)): 5,
    }
    found = attainment(some(late_by_hour=counts).late, 99, 1000)
    assert (found.measured, found.within, found.share) == (1000, 995, 0.995)
    assert found.burn_rate == pytest.approx(0.5)
    assert found.budget_left == pytest.approx(0.5)
    assert attainment({}, 99, 1000).budget_left is None
    assert {float(limit) for limit in Within.values} <= set(buckets.EDGES_MS)


@pytest.mark.parametrize(
    ("values", "first", "last"),
    [
        ({}, date(2026, 11, 16), NEWEST),
        ({"range": "yesterday"}, NEWEST, NEWEST),
        ({"range": "90"}, date(2026, 8, 25), NEWEST),
        ({"from": "2026-11-02"}, date(2026, 11, 2), date(2026, 11, 2)),
        (
            {"range": "custom", "from": "2026-11-02", "to": "2026-11-04"},
            date(2026, 11, 2),
            date(2026, 11, 4),
        ),
    ],
)
def test_a_range_is_read_from_the_address(values: dict[str, str], first: date, last: date) -> None:
    period, problem = read_period(values, NEWEST)
    assert (period.first, period.last, problem) == (first, last, "")
    assert period.before.last == first - timedelta(days=1)
    assert period.before.length == period.length


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"range": "soon"}, "is not a range"),
        ({"from": "soon"}, "“soon” is not a date"),
        ({"from": "2026-11-05", "to": "2026-11-01"}, "ends before it begins"),
        ({"from": "2025-11-05", "to": "2026-11-01"}, "longer than 92 days"),
        ({"from": "0001-01-01"}, "too long ago"),
    ],
)
def test_a_bad_range_is_refused_with_a_sentence(values: dict[str, str], words: str) -> None:
    period, problem = read_period(values, NEWEST)
    assert words in problem
    assert period.last == NEWEST


def test_what_earlier_versions_called_recovered_has_an_unknown_outcome() -> None:
    figures = Figures()
    figures.add_stored(
        '{"outcomes":[[1,2,"recovered",4],[1,3,"exhausted",1]],'
        '"groups":[["queue","recovered",1,2,"recovered",4]]}'
    )
    assert (figures.outcome(RECOVERED), figures.outcome("left")) == (0, 4)
    assert list(figures.counts["groups"]) == [("queue", "recovered", 1, 2, "left")]
    labels = {one.label: one.value for one in key_figures(figures, Figures())}
    assert labels["left the retries, outcome unknown"] == "80.0 %"
    assert "recovered by retry" not in labels
