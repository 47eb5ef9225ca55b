"""Sentences about a report, by rules: what changed, what never works, what is missing. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from statistics import median

from analytics import buckets
from analytics.models.results import Unusual
from analytics.results.figures import GROUP_MESSAGES, UNEXPLAINED, Figures
from analytics.results.period import HOUR, Period, local_hours, zone_name
from analytics.results.read import Days, Report, merged
from analytics.results.section import percent, view_of
from analytics.results.unusual import BASELINE_DAYS, LEAST_BASELINE
from topology.content.text import count_of, count_text
from topology.delays import format_ms

# Multiple of the usual p95, and milliseconds, from which on it gets a sentence.
TIMES_USUAL, LEAST_P95_MS = 5, 100
# Least days that say what is usual, and the multiple from which on a volume is unusual.
LEAST_DAYS, TIMES_VOLUME = 3, 2
# Least messages and attempts for a share that means something.
LEAST_MESSAGES, LEAST_ATTEMPTS = 100, 20
# Standard errors by which two shares must differ.
LEAST_DEVIATIONS = 4
MOST_SENTENCES = 8
ORDINALS = ("first", "second", "third", "fourth", "fifth")


@dataclass(frozen=True)
class Sentence:
    """`topology` and the days lead to the figures behind it, `section` to their table.

    Of one that `is_folded` a page shows the headline, and the text on request.
    """

    headline: str
    text: str
    section: str
    topology: str = ""
    first: date | None = None
    last: date | None = None
    is_folded: bool = False

    @property
    def view(self) -> str:
        return view_of(self.section)


def summarize(
    period: Period,
    total: Figures,
    days: Days,
    suspects: Mapping[str, Days],
    error_limit_ms: float,
) -> list[Sentence]:
    """The sentences of a range, the gravest kind first."""
    found = [*_unexplained(total, suspects)]
    for rule in (_late, _failures, _versions, _never_succeeding):
        found += [sentence for one in suspects.items() for sentence in rule(*one)]
    found = [*found[: MOST_SENTENCES - 2], *_measured_badly(days, error_limit_ms)]
    if missing := period.length - len(days):
        text = f"{missing} of {period.length} days have no figures."
        found.append(Sentence("Missing days.", text, "runs"))
    return found


def describe_unusual(found: Report) -> Iterator[Sentence]:
    """The most unusual things with their evidence."""
    for row in found.unusual:
        name = found.names[row.topology] if row.topology else f"broker {row.broker}"
        hours = local_hours(row.day)
        day = f"On {row.day:%-d %B}"
        if row.hour is None or row.first_hour is None or row.last_hour is None:
            values, worst = "days", ""
        else:
            begin, until = hours[row.first_hour], hours[row.last_hour] + HOUR
            day = f"On {begin:%-d %B} between {begin:%H:%M} and {until:%H:%M} ({zone_name()})"
            is_long = row.first_hour < row.last_hour
            worst = f" in the hour from {hours[row.hour]:%H:%M}" if is_long else ""
            values = "hours"
        usual = f"usual: {row.usual_low:,.0f} to {row.usual_high:,.0f} ({row.compared} {values})"
        count, of = count_text(row.observed), count_text(row.sample)
        if row.kind == Unusual.LATENESS:
            limit = format_ms(row.limit_ms or 0)
            what, section = f"{count} of {of} deliveries were later than {limit}", "lateness_map"
        elif row.kind == Unusual.FAILURES:
            failed = count_of(row.observed, "message")
            what, section = f"{failed} failed for the first time", "failures_map"
        elif row.topology:
            what, section = f"{count_of(row.observed, 'message')} given up or dead", "survival"
        else:
            what, section = f"{count_of(row.observed, 'dead letter')} arrived", "dead_letters_map"
        text = f"{name}: {what}{worst}, {usual}."
        label = Unusual(row.kind).label
        yield Sentence(
            f"Unusual: {label.lower()}.", f"{day}, {text}", section, row.topology, row.day, row.day
        )


def explain_unknown(found: Report) -> Iterator[Sentence]:
    """A sentence where not all kinds of changes were compared on each day."""
    unknown = []
    for kind in Unusual:
        # Without a measured delivery there is no lateness to compare.
        days = [one for one in found.days.values() if one.measured or kind != Unusual.LATENESS]
        compared = sum(one.by("compared")[kind.value] > 0 for one in days)
        if compared < len(days):
            of = count_of(len(days), "day")
            unknown.append(f"{kind.label}: {compared} of {of} compared.")
    if found.selection.destination:
        text = "Messages of one destination are not compared with earlier ones."
    elif found.days_recorded < LEAST_BASELINE and not found.unusual:
        recorded = count_of(found.days_recorded, "day")
        text = (
            f"{recorded} recorded of the {BASELINE_DAYS} before {found.period.last:%-d %B}. "
            f"{LEAST_BASELINE} are needed."
        )
    elif unknown:
        needed = f"{LEAST_BASELINE} of the {BASELINE_DAYS} days before need these figures."
        text = " ".join([*unknown, needed])
    else:
        return
    yield Sentence("Not everything is compared with earlier days.", text, "runs", is_folded=True)


def _versions(topology: str, days: Days) -> Iterator[Sentence]:
    """The two versions with the most messages, if one clearly fails more often."""
    counts: dict[str, list[int]] = {}
    for _, figures in sorted(days.items()):
        for (dimension, version, what), number in figures.items(GROUP_MESSAGES):
            if dimension == "version":
                counts.setdefault(str(version), [0, 0])[what == "messages"] += number
    # In the order in which they were seen first.
    largest = sorted(counts, key=lambda one: -counts[one][1])[:2]
    pair = [one for one in counts if one in largest]
    if len(pair) < 2 or min(counts[one][1] for one in pair) < LEAST_MESSAGES:
        return
    (failed, of), (failed_then, of_then) = (counts[one] for one in pair)
    low, high = difference_interval(failed, of, failed_then, of_then)
    if low <= 0 <= high:
        return
    least, most = sorted(abs(100 * one) for one in (low, high))
    text = (
        f"{topology}: {pair[0]} fails {percent(failed / of)} (of {count_text(of)}), {pair[1]} "
        f"{percent(failed_then / of_then)} (of {count_text(of_then)}). {pair[1]} fails "
        f"{least:.1f} to {most:.1f} points {'more' if low > 0 else 'less'} (95 % confidence)."
    )
    yield Sentence("Failures by version.", text, "groups", topology, min(days), max(days))


def difference_interval(one: int, of_one: int, other: int, of_other: int) -> tuple[float, float]:
    """The 95 % interval of the second share minus the first: Newcombe's method 10, from Wilson's
    intervals (Stat. Med. 17 (1998) 873).
    """
    (low, high), (low_then, high_then) = wilson(one, of_one), wilson(other, of_other)
    first, second = one / of_one, other / of_other
    return (
        second - first - math.hypot(second - low_then, high - first),
        second - first + math.hypot(high_then - second, first - low),
    )


def wilson(number: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share (J. Am. Stat. Assoc. 22 (1927) 209)."""
    z = 1.959964
    middle = (number + z * z / 2) / (of + z * z)
    half = z / (of + z * z) * math.sqrt(number * (of - number) / of + z * z / 4)
    return middle - half, middle + half


def _measured_badly(days: Days, limit_ms: float) -> Iterator[Sentence]:
    errors = [
        error_ms
        for figures in days.values()
        for hour in figures.by("early_by_hour")
        if (error_ms := figures.measure_error(int(hour))) is not None
    ]
    if bad := [error_ms for error_ms in errors if error_ms > limit_ms]:
        text = (
            f"In {len(bad)} of {count_of(len(errors), 'hour')} the recorder's error exceeds a "
            f"tenth of the target ({format_ms(limit_ms)}): up to {format_ms(max(bad))}."
        )
        yield Sentence("Lateness measured badly.", text, "error")


def _unexplained(total: Figures, suspects: Mapping[str, Days]) -> Iterator[Sentence]:
    number = total.fate(UNEXPLAINED)
    if not number:
        return
    sums = {
        name: sum(figures.fate(UNEXPLAINED) for figures in days.values())
        for name, days in suspects.items()
    }
    most = max(sums, key=lambda name: sums[name], default="")
    about = "About " if total.possible_repeats else ""
    if most and sums[most] == number:
        verb = "was" if number == 1 else "were"
        text = f"{about}{count_of(number, 'message')} of {most} {verb} due without a recorded end."
    else:
        text = f"{about}{count_of(number, 'message', 'was')} due without a recorded end."
        if most and sums[most]:
            text += f" Most of them: {most} ({count_text(sums[most])})."
    yield Sentence("Unexplained messages.", text, "ledger", most)


def _late(topology: str, days: Days) -> Iterator[Sentence]:
    # A bad hour is too little of its day for a p95, and often too small for a p99.
    by_day = {day: p99 for day, one in days.items() if (p99 := buckets.percentile(one.late, 0.99))}
    if not by_day:
        return
    worst = max(by_day, key=lambda day: by_day[day])
    hours_late = [days[worst].within_group("late_by_hour", hour) for hour in range(24)]
    by_hour = {hour: p95 for hour, one in enumerate(hours_late) if (p95 := _p95(one)) is not None}
    # With few days, the hours show better what is usual: those with few messages together.
    few = [one for hour, one in enumerate(hours_late) if one and hour not in by_hour]
    of_few = _p95(sum(map(Counter, few), Counter()))
    of_hours = [*by_hour.values(), *([] if of_few is None else [of_few] * len(few))]
    of_days = [p95 for day in by_day if (p95 := _p95(days[day].late)) is not None]
    usual = median(of_days if len(of_days) >= LEAST_DAYS else of_hours or of_days)
    limit = max(TIMES_USUAL * usual, LEAST_P95_MS)
    late = [hour for hour, p99 in by_hour.items() if p99 >= limit]
    if not late:
        return
    peak = max(late, key=lambda hour: by_hour[hour])
    first = last = peak
    while first - 1 in late:
        first -= 1
    while last + 1 in late:
        last += 1
    hours = local_hours(worst)
    begin, until = hours[first], hours[last] + HOUR
    text = (
        f"On {begin:%-d %B} between {begin:%H:%M} and {until:%H:%M} ({zone_name()}), p95 lateness "
        f"of {topology} rose from {format_ms(usual)} to {format_ms(by_hour[peak])}."
        f"{_describe_volume(days, worst, range(first, last + 1))}"
    )
    yield Sentence("Late deliveries.", text, "lateness", topology, worst, worst)


def _describe_volume(days: Days, worst: date, hours: range) -> str:
    """How many deliveries an hour there were, where they were more than in the same hours of other
    days, or on each day more than in other hours; else "".
    """
    of_hours = {day: figures.by("late_by_hour") for day, figures in days.items()}
    number = sum(of_hours[worst][hour] for hour in hours) / len(hours)
    same = [of_hours[day][hour] for day in days if day != worst for hour in hours]
    others = [of_hours[worst][hour] for hour in range(24) if hour not in hours]
    for compared, where in ((same, "on other days"), (others, "in other hours")):
        usual = median(compared) if compared else 0
        if usual and number >= TIMES_VOLUME * usual:
            return f" {number:.0f} deliveries an hour were measured then, {usual:.0f} {where}."
    return ""


def _p95(counts: buckets.Counts) -> float | None:
    return buckets.percentile(counts, 0.95)


def _failures(topology: str, days: Days) -> Iterator[Sentence]:
    """The day from which on messages fail at least twice as often, if there is a clear one."""
    in_order = sorted(days)
    shares = [(days[day].retried, days[day].messages) for day in in_order]
    best: tuple[float, int] | None = None
    for place in range(1, len(in_order)):
        before, after = _sum(shares[:place]), _sum(shares[place:])
        if is_doubled(before, after):
            best = max(best or (0.0, 0), (_deviations(before, after), place))
    if best is None:
        return
    before, after = _sum(shares[: best[1]]), _sum(shares[best[1] :])
    day = in_order[best[1]]
    text = (
        f"First-time failures of {topology} rose from {percent(before[0] / before[1])} to "
        f"{percent(after[0] / after[1])} on {day:%-d %B}."
    )
    since = merged(days[one] for one in in_order[best[1] :])
    if causes := since.counts["causes"].most_common(1):
        (queue, reason, exception, _), number = causes[0]
        share = number / since.counts["causes"].total()
        text += f" {percent(share)} of the failures since: {exception or reason} in {queue}."
    yield Sentence("More failures.", text, "recovery", topology, in_order[0], in_order[-1])


def is_doubled(before: tuple[int, int], after: tuple[int, int]) -> bool:
    """Whether (failed, messages) after is twice as much as before, and not by chance."""
    if min(before[1], after[1]) < LEAST_MESSAGES:
        return False
    is_twice = after[0] * before[1] >= 2 * before[0] * after[1]
    return is_twice and _deviations(before, after) >= LEAST_DEVIATIONS


def _deviations(before: tuple[int, int], after: tuple[int, int]) -> float:
    """How many standard errors the second share is above the first."""
    pooled = (before[0] + after[0]) / (before[1] + after[1])
    error = math.sqrt(pooled * (1 - pooled) * (1 / before[1] + 1 / after[1]))
    return (after[0] / after[1] - before[0] / before[1]) / error if error else 0.0


def _sum(shares: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return sum(failed for failed, _ in shares), sum(messages for _, messages in shares)


def _never_succeeding(topology: str, days: Days) -> Iterator[Sentence]:
    total = merged(days.values())
    steps = total.survival()
    last = max((step.attempt for step in steps if step.recovered or step.left), default=0)
    tried = sum(step.at_risk for step in steps if step.attempt > last)
    # Where nobody observes deliveries, no success is recorded.
    if tried < LEAST_ATTEMPTS or not (last or total.measured):
        return
    name = ORDINALS[last - 1] if last <= len(ORDINALS) else f"{last}th"
    headline = f"Attempts after the {name} never succeed" if last else "Retries never succeed"
    text = f"in {topology} (0 of {count_text(tried)}). Park these messages earlier."
    yield Sentence(headline, text, "survival", topology)
