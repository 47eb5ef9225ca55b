"""What is unusual about a day: late deliveries, failures and dead letters against 28 days before.

The method is Farrington's with the weights of Noufaily, which health agencies use for outbreaks: an
overdispersed Poisson rate, past outbreaks (by median and MAD) weighted down, the 2/3 power for the
skew of counts.
Farrington et al., J. R. Stat. Soc. A 159 (1996) 547; Noufaily et al., Stat. Med. 32 (2013) 1206.
All tests of a night are judged together: Benjamini and Hochberg, J. R. Stat. Soc. B 57 (1995) 289.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from math import log, sqrt
from operator import itemgetter
from statistics import NormalDist, median

from analytics import buckets
from analytics.models import DayFigures, Gap, UnusualChange
from analytics.models.results import Unusual
from analytics.results.figures import DIED, EXHAUSTED, Figures
from analytics.results.period import whole_hours

BASELINE_DAYS, LEAST_BASELINE = 28, 7
# Least values of the same hour of the weekday and the hours beside it, of 12 in four weeks.
LEAST_SAME_WEEKDAY = 10
# Share of what is called unusual that may be chance.
FALSE_SHARE = 0.01
# Least count, and least multiple of the usual one, that matter however improbable they are.
LEAST_COUNT, LEAST_TIMES = 5, 2.0
LEAST_LATE_MS = 100.0
# Residuals from which on values weigh less, and of the central 95 %, the usual range.
OUTLIER, USUAL = 2.58, 1.96
# Standard deviations of a normal distribution in its median absolute deviation.
MAD = 1.4826
# A count, and what it is a part of or grows with.
Value = tuple[float, float]


@dataclass(frozen=True)
class Verdict:
    """How a count stands against its baseline of `compared` values; `score` in standard errors."""

    observed: float
    sample: float
    expected: float
    error: float
    compared: int

    @property
    def score(self) -> float:
        """The score of a count by the 2/3 power, as of a normal distribution: the error is
        estimated from few values (Student), which Wallace's approximation turns into one (Ann.
        Math. Stat. 30 (1959) 1124).
        """
        power = max(self.observed - 0.5, 0) ** (2 / 3) - self.expected ** (2 / 3)
        t = power / (2 / 3 * self.expected ** (-1 / 3) * self.error)
        freedom = self.compared - 1
        normal = sqrt(freedom * log(1 + t * t / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
        return normal if t > 0 else -normal

    @property
    def chance(self) -> float:
        """The probability of so many or more, if nothing has changed."""
        return NormalDist().cdf(-self.score)

    @property
    def usual(self) -> tuple[float, float]:
        step = 2 / 3 * USUAL * self.error / self.expected
        low, high = (max(1 + sign * step, 0) ** 1.5 * self.expected for sign in (-1, 1))
        return low, high

    @property
    def matters(self) -> bool:
        return self.observed >= max(LEAST_COUNT, LEAST_TIMES * self.expected)


def judge(now: Value, before: Sequence[Value]) -> Verdict | None:
    """A count against earlier ones; None without anything to compare it with."""
    observed, sample = now
    before = [(count, of) for count, of in before if of > 0]
    if sample <= 0 or len(before) < LEAST_BASELINE:
        return None
    # Half a count in all: what never happened is rare, not impossible.
    mean = (sum(count for count, _ in before) + 0.5) / sum(of for _, of in before)
    middle = median(count / of for count, of in before) or mean
    residuals = [_residual(count, middle * of) for count, of in before]
    spread = max(1.0, MAD * median(map(abs, residuals)))
    weights = [min(1.0, (OUTLIER * spread / max(one, 0.01)) ** 2) for one in residuals]
    weighted = [(w, k, of) for w, (k, of) in zip(weights, before, strict=True)]
    of_all = sum(w * of for w, _, of in weighted)
    rate = (sum(w * k for w, k, _ in weighted) + 0.5) / of_all
    squares = sum(w * (k - rate * of) ** 2 / (rate * of) for w, k, of in weighted)
    dispersion = max(1.0, squares / (len(before) - 1))
    expected = rate * sample
    error = sqrt(dispersion * expected * (1 + sample / of_all))
    return Verdict(observed, sample, expected, error, len(before))


def _residual(count: float, expected: float) -> float:
    """Anscombe's residual of a Poisson count, about normal."""
    power = count ** (2 / 3) - expected ** (2 / 3)
    return float(1.5 * power * expected ** (-1 / 6))


def is_unlikely(chances: Sequence[float], share: float = FALSE_SHARE) -> list[bool]:
    """Which of all tests are significant: Benjamini and Hochberg's step-up at this share."""
    limit = 0.0
    for rank, chance in enumerate(sorted(chances), start=1):
        if chance <= share * rank / len(chances):
            limit = chance
    return [chance <= limit for chance in chances]


@dataclass(frozen=True)
class Comparison:
    kind: Unusual
    topology: str
    broker: str
    hour: int | None
    verdict: Verdict
    limit_ms: float | None = None


def compare(
    day: date,
    broker: str,
    topology: str,
    now: Figures,
    before: Mapping[date, Figures],
    unrecorded: Set[datetime] = frozenset(),
) -> Iterator[Comparison]:
    """All comparisons of one topology, or of a broker's dead letters where it is "" .

    The hours (UTC) that were not recorded say nothing of what is usual.
    """
    if len(before) < LEAST_BASELINE:
        return
    if topology:
        # Rates or counts, never both in one series: of a rate, days without messages say nothing.
        is_rate = now.messages > 0
        late = sum((Counter(one.late) for one in before.values()), Counter[int]())
        p95 = buckets.percentile(late, 0.95)
        limit = buckets.bucket_of(max(p95 or 0.0, LEAST_LATE_MS))
        limit_ms = buckets.bounds(limit)[1]
        yield from _by_hour(
            *(Unusual.LATENESS, day, broker, topology),
            _count_late(now, limit),
            {one: _count_late(figures, limit) for one, figures in before.items()},
            limit_ms,
        )
        yield from _by_hour(
            *(Unusual.FAILURES, day, broker, topology),
            _count_failures(now, is_rate),
            {
                one: [
                    value if hour not in unrecorded else (0, 0)
                    for hour, value in zip(
                        _hours_of(one), _count_failures(figures, is_rate), strict=True
                    )
                ]
                for one, figures in before.items()
                # Of days that were computed before first-time failures were counted, only those
                # without any failure.
                if not figures.total("causes") or figures.by("counted")["first_failures_by_hour"]
            },
        )
        ended = [
            _count_given_up(figures, is_rate)
            for one, figures in before.items()
            if not set(_hours_of(one)) <= unrecorded
        ]
        if verdict := judge(_count_given_up(now, is_rate), ended):
            yield Comparison(Unusual.DEAD_LETTERS, topology, broker, None, verdict)
    else:
        yield from _by_hour(
            *(Unusual.DEAD_LETTERS, day, broker, topology),
            _count_dead_letters(now),
            {
                one: _count_dead_letters(figures)
                for one, figures in before.items()
                if not figures.total("dead_letters") or figures.total("dead_letters_by_hour")
            },
        )


def _by_hour(
    kind: Unusual,
    day: date,
    broker: str,
    topology: str,
    now: Sequence[Value],
    before: Mapping[date, Sequence[Value]],
    limit_ms: float | None = None,
) -> Iterator[Comparison]:
    for hour in range(24):
        same = [
            before[one][near]
            for one in before
            if one.weekday() == day.weekday()
            for near in range(max(hour - 1, 0), min(hour + 2, 24))
            if before[one][near][1] > 0
        ]
        if len(same) < LEAST_SAME_WEEKDAY:
            same = [values[hour] for values in before.values()]
        if verdict := judge(now[hour], same):
            yield Comparison(kind, topology, broker, hour, verdict, limit_ms)


def _hours_of(day: date) -> list[datetime]:
    return [datetime.combine(day, time(hour), UTC) for hour in range(24)]


def _count_late(figures: Figures, limit: int) -> list[Value]:
    late, measured = Counter[int](), Counter[int]()
    for (hour, bucket), number in figures.items("late_by_hour"):
        measured[int(hour)] += number
        late[int(hour)] += number if int(bucket) > limit else 0
    return [(late[hour], measured[hour]) for hour in range(24)]


def _count_failures(figures: Figures, is_rate: bool) -> list[Value]:
    """Of the first time, with the messages of the day, if a rate is compared: one message that is
    retried for hours is one failure.
    """
    by_hour = figures.by("first_failures_by_hour")
    return [(by_hour[hour], figures.messages if is_rate else 1) for hour in range(24)]


def _count_dead_letters(figures: Figures) -> list[Value]:
    found = Counter[int]()
    for (kind, hour), number in figures.items("dead_letters_by_hour"):
        found[int(hour)] += number if kind == "arrived" else 0
    return [(found[hour], 1) for hour in range(24)]


def _count_given_up(figures: Figures, is_rate: bool) -> Value:
    return figures.outcome(EXHAUSTED) + figures.fate(DIED), figures.messages if is_rate else 1


def select_unusual(tests: Sequence[Comparison]) -> list[Comparison]:
    """The tests that are significant among all and that matter, the most unusual first; hours of
    one kind and topology that follow each other are one, that of the worst hour.
    """
    unlikely = is_unlikely([one.verdict.chance for one in tests])
    kept = [one for one, is_rare in zip(tests, unlikely, strict=True) if is_rare]
    return sorted((one for one in kept if one.verdict.matters), key=lambda one: -one.verdict.score)


def join_hours(tests: Iterable[Comparison]) -> list[tuple[Comparison, int | None, int | None]]:
    """Each run of hours of one kind and topology as its worst test, first and last hour."""
    by_series: defaultdict[tuple[str, str, str], list[Comparison]] = defaultdict(list)
    for one in tests:
        by_series[one.kind, one.broker, one.topology].append(one)
    found: list[tuple[Comparison, int | None, int | None]] = []
    for series in by_series.values():
        series.sort(key=lambda one: -1 if one.hour is None else one.hour)
        for one in series:
            last = found[-1] if found and found[-1][0] in series else None
            if last and last[2] is not None and one.hour is not None and one.hour == last[2] + 1:
                worst = max(last[0], one, key=lambda each: each.verdict.score)
                found[-1] = (worst, last[1], one.hour)
            else:
                found.append((one, one.hour, one.hour))
    return sorted(found, key=lambda one: -one[0].verdict.score)


def find_unusual(
    day: date, figures: Mapping[tuple[str, str], Figures]
) -> tuple[list[UnusualChange], Set[tuple[str, str, Unusual]]]:
    """Rows of what is unusual about a day, by its figures of brokers and topologies (slugs), and
    what was compared: broker, topology and kind.
    """
    first = day - timedelta(days=BASELINE_DAYS)
    rows = DayFigures.objects.filter(
        broker__in={broker for broker, _ in figures},
        topology__in={topology for _, topology in figures},
        day__range=(first, day - timedelta(days=1)),
        pattern="",
        destination="",
    )
    unrecorded: defaultdict[str, set[datetime]] = defaultdict(set)
    begin, end = (datetime.combine(one, time(), UTC) for one in (first, day))
    gaps = Gap.objects.filter(until_at__gt=begin, from_at__lt=end)
    for slug, since, until in gaps.values_list("topology__slug", "from_at", "until_at"):
        unrecorded[slug].update(whole_hours(max(since, begin), min(until, end)))
    tests: list[Comparison] = []
    in_order = rows.order_by("broker", "topology").values_list(
        "broker", "topology", "day", "figures"
    )
    # One topology's days are enough to hold.
    for (broker, topology), of_place in groupby(in_order.iterator(), key=itemgetter(0, 1)):
        if (broker, topology) not in figures:
            continue
        days: dict[date, Figures] = {}
        for *_, of_day, stored in of_place:
            days.setdefault(of_day, Figures()).add_stored(stored)
        now = figures[broker, topology]
        tests += compare(day, broker, topology, now, days, unrecorded[topology])
    found = []
    for one, first_hour, last_hour in join_hours(select_unusual(tests)):
        low, high = one.verdict.usual
        row = UnusualChange(
            day=day,
            broker=one.broker,
            topology=one.topology,
            kind=one.kind,
            hour=one.hour,
            first_hour=first_hour,
            last_hour=last_hour,
            observed=one.verdict.observed,
            sample=one.verdict.sample,
            usual_low=low,
            usual_high=high,
            compared=one.verdict.compared,
            limit_ms=one.limit_ms,
            score=one.verdict.score,
        )
        found.append(row)
    return found, {(one.broker, one.topology, one.kind) for one in tests}
