"""The rows of every table of a report, in plain Python, of what truth has counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from tests.analytics.truth import Trip, Truth, cause_of
from tests.analytics.truth_log import PLACES, Place

Row: TypeAlias = list[Any]
# Early, on time, and ten buckets for each factor of ten (ISO 3).
EDGES = [-50.0] + [
    float(step * 10**power)
    for power in range(8)
    for step in (1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8)
]
SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
DELAY_EDGES = [
    *(SECOND, 5 * SECOND, 30 * SECOND, 5 * MINUTE, HOUR, 6 * HOUR, 24 * HOUR),
    *(7 * 24 * HOUR, 30 * 24 * HOUR),
]
DELAYS = (
    *("under 1s", "1–5s", "5–30s", "30s–5m", "5m–1h"),
    *("1–6h", "6–24h", "1–7d", "7–30d", "over 30d"),
)
FATES = ("delivered", "died", "cancelled", "moved", "waiting", "not observed", "unexplained")
HANDLED = ("arrived", "parked", "replayed", "discarded")
DIMENSIONS = ("queue", "reason", "exception", "routing key", "publisher", "version")
# Of the topology with a target.
TARGET, WITHIN_MS, PERCENT = "bills", 1000, 95.0


@dataclass(frozen=True)
class Cut:
    """What is selected, "" is all; and the days."""

    days: tuple[datetime, ...]
    broker: str = ""
    topology: str = ""
    pattern: str = ""
    destination: str = ""

    def has(self, place: Place, destination: str = "") -> bool:
        wanted = (self.broker, self.topology, self.pattern)
        own = (place.broker, place.topology, place.pattern)
        is_here = all(one in ("", other) for one, other in zip(wanted, own, strict=True))
        return is_here and self.destination in ("", destination)


def bucket(ms: float) -> int:
    return sum(ms >= edge for edge in EDGES)


def percentile(values: Sequence[float], share: float) -> float | None:
    """Of the values' buckets, in proportion within one; None of too few for it."""
    if not values or (share < 1 and round(len(values) * (1 - share), 6) < 1):
        return None
    wanted, passed = share * len(values), 0
    for number, size in sorted(Counter(map(bucket, values)).items()):
        if passed + size >= wanted:
            if number < 2:
                return 0.0
            low = EDGES[number - 1]
            high = EDGES[number] if number < len(EDGES) else low * 1.25
            return low + (high - low) * (wanted - passed) / size
        passed += size
    raise AssertionError


def describe(late: Sequence[float]) -> Row:
    early = sum(ms < -50 for ms in late)
    shares = (0.5, 0.9, 0.95, 0.99, 1.0)
    return [*(percentile(late, one) for one in shares), ratio(early, len(late))]


def ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def error_of(late: Sequence[float]) -> float | None:
    """How early one in a hundred seems, of fewer the earliest one."""
    early = [max(-ms, 0.0) for ms in late]
    return percentile(early, 0.99 if len(late) >= 100 else 1.0)


def rows_of(truth: Truth, cut: Cut, names: dict[str, str]) -> dict[str, list[Row]]:
    """By the key of each section that makes sense of the cut."""
    made: dict[str, Callable[[], list[Row]]] = {}
    trips = [
        one for one in truth.trips if one.day in cut.days and cut.has(one.place, one.destination)
    ]
    by_day = [(day, [one for one in trips if one.day == day]) for day in cut.days]
    made |= {"lateness": lambda: _lateness(by_day), "lateness_map": lambda: _map(by_day)}
    made |= {"delays": lambda: _delays(trips), "error": lambda: _error(by_day, cut)}
    made["ledger"] = lambda: _ledger(truth, by_day, trips, cut)
    made["topologies"] = lambda: _topologies(truth, trips, cut, names)
    if cut.topology == TARGET:
        made["slo"] = lambda: _slo(by_day, names)
    if not cut.destination:
        made["probes"] = lambda: _probes(truth, cut)
        made["recovery"] = lambda: _recovery(truth, cut)
        made["failures_map"] = lambda: _failures_map(truth, cut)
        made["survival"] = lambda: _survival(truth, cut)
        made["rates"] = lambda: _rates(truth, cut, names)
        made["groups"] = lambda: _groups(truth, cut)
        made["causes"] = lambda: _causes(truth, cut)
    if not (cut.topology or cut.pattern or cut.destination):
        made["dead_letters"] = lambda: _by_reason(truth, cut)
        made["dead_letters_map"] = lambda: _letters_map(truth, cut)
        made["handled"] = lambda: _handled(truth, cut)
    return {key: make() for key, make in made.items()}


def late_of(trips: Iterable[Trip]) -> list[float]:
    return [one.late_ms for one in trips if one.late_ms is not None]


def _date(day: datetime) -> str:
    return f"{day:%Y-%m-%d}"


def _lateness(by_day: list[tuple[datetime, list[Trip]]]) -> list[Row]:
    rows: list[Row] = []
    for day, trips in by_day:
        late, delivered = late_of(trips), sum(one.fate == "delivered" for one in trips)
        if delivered:
            last = [error_of(late), delivered - len(late)]
            rows.append([_date(day), len(late), *describe(late), *last])
    return rows


def _map(by_day: list[tuple[datetime, list[Trip]]]) -> list[Row]:
    """Bands of half a factor of ten, from the lowest to the highest one that has any."""
    if len(by_day) > 1:
        spans = [(_date(day), late_of(trips)) for day, trips in by_day]
    else:
        ((_, trips),) = by_day
        spans = [
            (f"{hour:02}:00", late_of(one for one in trips if one.entered_at.hour == hour))
            for hour in range(24)
        ]
    # Below a millisecond is the first band, which has two buckets; each other one has five.
    bands = [[max((bucket(ms) + 3) // 5, 0) for ms in late] for _, late in spans]
    used = {band for some in bands for band in some}
    shown = range(min(used), max(used) + 1) if used else range(0)
    return [
        [label, *(some.count(band) for band in shown)]
        for (label, _), some in zip(spans, bands, strict=True)
        if used
    ]


def _group(delay_ms: int) -> int:
    return sum(delay_ms >= edge for edge in DELAY_EDGES)


def _delays(trips: list[Trip]) -> list[Row]:
    rows: list[Row] = []
    for group, label in enumerate(DELAYS):
        late = late_of(one for one in trips if _group(one.delay_ms) == group)
        if late:
            rows.append([label, len(late), *describe(late)])
    return rows


def _error(by_day: list[tuple[datetime, list[Trip]]], cut: Cut) -> list[Row]:
    limit = (WITHIN_MS if cut.topology == TARGET else 1000) / 10
    rows: list[Row] = []
    for day, trips in by_day:
        for hour in range(24):
            late = late_of(one for one in trips if one.entered_at.hour == hour)
            early = sum(ms <= -1 for ms in late)
            if early:
                error = error_of(late) or 0.0
                quality = "bad" if error > limit else "good"
                rows.append([f"{_date(day)} {hour:02}:00", len(late), early, error, quality])
    return rows


def _ledger(
    truth: Truth, by_day: list[tuple[datetime, list[Trip]]], trips: list[Trip], cut: Cut
) -> list[Row]:
    rows: list[Row] = []
    days = [(_date(day), some, (day,)) for day, some in by_day]
    for label, some, of in [*days, ("Total", trips, cut.days)]:
        fates = Counter(one.fate for one in some)
        repeated = sum(
            number
            for (day, topology, destination), number in truth.repeated.items()
            if day in of and cut.has(_place(topology), destination)
        )
        if some:
            of_unexplained = min(fates["unexplained"], repeated)
            rows.append([label, len(some), *(fates[one] for one in FATES), of_unexplained])
    return rows


def _place(topology: str) -> Place:
    (found,) = (place for place in PLACES if place.topology == topology)
    return found


def _sum(counts: Counter[tuple[datetime, str]], place: Place, days: Iterable[datetime]) -> int:
    return sum(counts[day, place.topology] for day in days)


def _topologies(truth: Truth, trips: list[Trip], cut: Cut, names: dict[str, str]) -> list[Row]:
    rows = []
    for place in (one for one in PLACES if cut.has(one, cut.destination)):
        own = [one for one in trips if one.place == place]
        late = late_of(own)
        has_any = own or (not cut.destination and _sum(truth.messages, place, cut.days))
        if not has_any:
            continue
        daily = [late_of(one for one in own if one.day == day) for day in cut.days]
        worst = [p99 for p99 in (percentile(late, 0.99) for late in daily) if p99 is not None]
        target: Row = [None, None, None]
        if place.topology == TARGET:
            within = sum(ms < WITHIN_MS for ms in late)
            share = ratio(within, len(late))
            result = None if share is None else "met" if 100 * share >= PERCENT else "missed"
            target = [f"{PERCENT:g} % within 1s of due", share, result]
        known: Row = [None, None, None]
        if not cut.destination:
            messages, retried = (
                _sum(counts, place, cut.days) for counts in (truth.messages, truth.retried)
            )
            given_up = sum(
                one.outcome == "given up" and one.place == place and one.day in cut.days
                for one in truth.trails
            )
            known = [messages, ratio(retried, messages), given_up]
        unexplained = sum(one.fate == "unexplained" for one in own)
        name, p99 = names[place.topology], max(worst, default=None)
        rows.append([name, len(late), p99, *target, *known, unexplained])
    return sorted(rows, key=lambda row: -(row[2] or 0))


def _slo(by_day: list[tuple[datetime, list[Trip]]], names: dict[str, str]) -> list[Row]:
    rows: list[Row] = []
    for day, trips in by_day:
        if late := late_of(trips):
            missed = sum(ms >= WITHIN_MS for ms in late)
            burn = missed / len(late) / (1 - PERCENT / 100)
            target = (f"{PERCENT:g} % within 1s of due", names[TARGET])
            rows.append([_date(day), len(late), missed, 1 - missed / len(late), burn, *target])
    return rows


def _probes(truth: Truth, cut: Cut) -> list[Row]:
    rows: list[Row] = []
    own = [one for one in truth.probes if one[0] in cut.days and cut.has(one[1])]
    for group, label in enumerate(DELAYS):
        of_delay = [one for one in own if _group(one[2]) == group]
        if of_delay:
            late = [ms for *_, fate, ms in of_delay if fate == "measured"]
            fates = Counter(fate for *_, fate, _ in of_delay)
            row = [label, len(late), *describe(late), fates["unmeasured"], fates["missing"]]
            rows.append(row)
    return rows


def _recovery(truth: Truth, cut: Cut) -> list[Row]:
    rows: list[Row] = []
    places = [place for place in PLACES if cut.has(place)]
    for day in cut.days:
        messages, retried, attempts = (
            sum(counts[day, place.topology] for place in places)
            for counts in (truth.messages, truth.retried, truth.attempts)
        )
        trails = [one for one in truth.trails if one.day == day and cut.has(one.place)]
        ends = Counter(one.outcome for one in trails)
        done, left, given_up = ends["recovered"], ends["left"], ends["given up"]
        if messages or trails:
            took = [one.took_ms for one in trails if one.outcome in ("left", "recovered")]
            shares = (ratio(retried, messages), ratio(attempts, retried))
            share = None if left else ratio(done, done + given_up)
            last = (share, len(took), percentile(took, 0.5), percentile(took, 0.99))
            rows.append([_date(day), messages, retried, *shares, done, left, given_up, *last])
    return rows


def _failures_map(truth: Truth, cut: Cut) -> list[Row]:
    own = [one for one in truth.failures if one[0] in cut.days and cut.has(one[1])]
    hours = Counter((day, event.recorded_at.hour) for day, _, event in own)
    return [[_date(day), *(hours[day, hour] for hour in range(24))] for day in cut.days if own]


def _trails(truth: Truth, cut: Cut) -> list[tuple[int, int, str, dict[str, str]]]:
    return [
        (one.first, one.last, one.outcome, one.cause)
        for one in truth.trails
        if one.day in cut.days and cut.has(one.place)
    ]


def _steps(trails: Sequence[tuple[int, int, str, dict[str, str]]]) -> list[Row]:
    """Kaplan-Meier: attempt, at risk, each end in it, waiting, and the share still failing."""
    rows: list[Row] = []
    failing = 1.0
    for attempt in range(1, 9):
        ended = [one for one in trails if one[0] <= attempt <= one[1]]
        # What was given up fails in every later attempt.
        failed = sum(end == "given up" and last < attempt for _, last, end, _ in trails)
        ends = Counter(end for _, last, end, _ in trails if last == attempt and end != "open")
        waiting = sum(end == "open" and last + 1 == attempt for _, last, end, _ in trails)
        if not ended and not waiting:
            continue
        if ended:
            failing *= 1 - (ends["recovered"] + ends["left"]) / (len(ended) + failed)
        counts = [len(ended), ends["recovered"], ends["left"], ends["given up"], waiting]
        rows.append([attempt, *counts, failing])
    return rows


def _survival(truth: Truth, cut: Cut) -> list[Row]:
    return [
        [*counts, None if counts[3] else ratio(counts[2], counts[1]), failing]
        for *counts, failing in _steps(_trails(truth, cut))
    ]


def _rates(truth: Truth, cut: Cut, names: dict[str, str]) -> list[Row]:
    rows: list[Row] = []
    for place in (one for one in PLACES if cut.has(one)):
        messages, retried = (
            _sum(counts, place, cut.days) for counts in (truth.messages, truth.retried)
        )
        if retried:
            # A retry pair is named by its work queue.
            queue = place.topology if place.pattern == "retry_pair" else names[place.topology]
            rows.append([queue, messages, retried, retried / messages])
    return sorted(rows, key=lambda row: -row[3])


def _groups(truth: Truth, cut: Cut) -> list[Row]:
    trails = _trails(truth, cut)
    rows: list[Row] = []
    for dimension in DIMENSIONS:
        known: Counter[tuple[str, str]] = Counter()
        for (day, topology, name, value, what), number in truth.releases.items():
            if name == dimension and day in cut.days and cut.has(_place(topology)):
                known[value, what] += number
        values = {one[3][dimension] for one in trails if one[3].get(dimension)}
        of_dimension: list[Row] = []
        for value in values | {value for value, _ in known}:
            own = [one for one in trails if one[3].get(dimension) == value]
            ends = Counter(end for _, _, end, _ in own)
            tries = sum(last - first + 1 + (end == "open") for first, last, end, _ in own)
            failing = {row[0]: row[-1] for row in _steps(own) if row[1]}
            messages = known.get((value, "messages"))
            of_dimension.append(
                [
                    *(value, dimension, messages),
                    ratio(known.get((value, "retried"), 0), messages or 0),
                    *(len(own), ratio(tries, len(own))),
                    *(ends["recovered"], ends["left"], ends["given up"]),
                    *(failing.get(1), failing.get(3)),
                ]
            )
        rows += sorted(of_dimension, key=lambda row: (row[4], row[2] or 0, row[0]), reverse=True)
    return rows


def _causes(truth: Truth, cut: Cut) -> list[Row]:
    own = [one for one in truth.failures if one[0] in cut.days and cut.has(one[1])]
    causes: Counter[tuple[str, ...]] = Counter()
    for _, _, event in own:
        cause = cause_of(event)
        causes[cause["queue"], cause["reason"], cause["exception"], cause["routing key"]] += 1
    return [[*cause, number] for cause, number in causes.most_common()]


def _letters(truth: Truth, cut: Cut) -> list[tuple[Any, ...]]:
    return [
        (*key[:1], *key[2:], number)
        for key, number in truth.letters.items()
        if key[0] in cut.days and cut.broker in ("", key[1])
    ]


def _by_reason(truth: Truth, cut: Cut) -> list[Row]:
    counts: Counter[tuple[datetime, str, str]] = Counter()
    for day, kind, reason, _, _, _, number in _letters(truth, cut):
        counts[day, reason, kind] += number
    places = sorted({(day, reason) for day, reason, _ in counts})
    return [
        [_date(day), reason or "unknown", *(counts[day, reason, kind] for kind in HANDLED)]
        for day, reason in places
    ]


def _letters_map(truth: Truth, cut: Cut) -> list[Row]:
    hours: Counter[tuple[datetime, int]] = Counter()
    for day, kind, *_, hour, number in _letters(truth, cut):
        hours[day, hour] += number if kind == "arrived" else 0
    has_any = hours.total()
    return [[_date(day), *(hours[day, hour] for hour in range(24))] for day in cut.days if has_any]


def _handled(truth: Truth, cut: Cut) -> list[Row]:
    counts: Counter[tuple[tuple[str, ...], str]] = Counter()
    for _, kind, reason, origin, exception, _, number in _letters(truth, cut):
        counts[(origin or "unknown", reason or "unknown", exception), kind] += number
    origins = {origin for origin, _ in counts}
    return [[*origin, *(counts[origin, kind] for kind in HANDLED)] for origin in origins]
