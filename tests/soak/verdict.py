"""PURE: from the samples of a soak to findings: what stayed flat, what grew, what went wrong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import median
from typing import Literal, TypeAlias

WARM_UP_SHARE = 1 / 6
HOUR_SECONDS = 3600.0
# A slope is the median of the slopes between pairs; of this many points at most.
LONGEST_SERIES = 400

Point: TypeAlias = tuple[float, float]
Kind: TypeAlias = Literal["flat", "level", "still", "zero", "shown"]


@dataclass(frozen=True)
class Sample:
    """What was measured `seconds` after the beginning, by name."""

    seconds: float
    values: dict[str, float]


@dataclass(frozen=True)
class Rule:
    """What is asked of the values whose name matches, after the warm-up.

    flat: grows by at most `bound` an hour, or by less than `floor` altogether. level: the
    median of its last third is at most `bound` above that of the first. still: never
    grows by more than `bound`. zero: is 0 at every sample. shown: nothing.
    """

    names: str
    kind: Kind
    bound: float = 0.0
    floor: float = 0.0

    @property
    def text(self) -> str:
        match self.kind:
            case "flat":
                return f"+{self.bound:g} an hour"
            case "level":
                return f"+{self.bound:g} in all"
            case "still":
                return f"+{self.bound:g} in all" if self.bound else "stays"
            case "zero":
                return "0 always"
        return ""


@dataclass(frozen=True)
class Finding:
    """One measure over the time after the warm-up; `per_hour` is its fitted slope."""

    name: str
    first: float
    last: float
    highest: float
    per_hour: float
    rule: Rule
    is_good: bool


# Memory is in MB. The bounds tell a leak from the noise of an allocator: 20 MB an hour would
# fill a small machine within days.
RULES = (
    Rule("broker.memory", "flat", 40, 20),
    Rule("browser.memory", "flat", 60, 40),
    Rule("*.memory", "flat", 20, 6),
    Rule("*.heap", "flat", 3, 2),
    Rule("*.nodes", "level", 500),
    Rule("broker.files", "level", 12),
    Rule("*.files", "level", 3),
    Rule("*.threads", "level", 3),
    Rule("broker.connections", "level", 0),
    # Hold queues are temporary.
    Rule("broker.queues", "level", 3),
    # Less the probes, which RabbitMQ counts some seconds later than we do.
    Rule("broker.connections created", "level", 0),
    Rule("broker.errors", "still", 0),
    Rule("broker.unanswered", "zero"),
    Rule("*.starts", "still", 0),
    Rule("*.sockets opened", "still", 0),
    Rule("*.failures", "still", 0),
    Rule("*.stale", "zero"),
    Rule("*.silent", "zero"),
    Rule("background_tasks.late", "zero"),
    Rule("background_tasks.failing", "zero"),
    Rule("installation.warnings", "still", 0),
    Rule("gaps", "zero"),
    Rule("unknown copies", "zero"),
    Rule("*", "shown"),
)


def judge(samples: Sequence[Sample]) -> list[Finding]:
    """A finding for each measure, in the order of the rules and then of the names."""
    judged = settled(samples)
    names = sorted({name for sample in judged for name in sample.values})
    found = [finding(name, series(judged, name)) for name in names]
    return sorted(found, key=lambda each: RULES.index(each.rule))


def settled(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The samples after the warm-up: the first sixth of the time."""
    if not samples:
        return samples
    from_seconds = samples[-1].seconds * WARM_UP_SHARE
    return [sample for sample in samples if sample.seconds >= from_seconds]


def series(samples: Iterable[Sample], name: str) -> list[Point]:
    return [(s.seconds, s.values[name]) for s in samples if name in s.values]


def rule_for(name: str) -> Rule:
    return next(rule for rule in RULES if fnmatchcase(name, rule.names))


def finding(name: str, points: Sequence[Point]) -> Finding:
    """Judge the points of one measure, at least one, by the rule of its name."""
    rule = rule_for(name)
    values = [value for _, value in points]
    per_hour = slope(points) * HOUR_SECONDS
    third = max(1, len(values) // 3)
    first, last = median(values[:third]), median(values[-third:])
    hours = (points[-1][0] - points[0][0]) / HOUR_SECONDS
    good = {
        "flat": per_hour <= rule.bound or per_hour * hours <= rule.floor,
        "level": last - first <= rule.bound,
        "still": max(values) - values[0] <= rule.bound,
        "zero": not any(values),
        "shown": True,
    }
    return Finding(name, first, last, max(values), per_hour, rule, good[rule.kind])


def slope(points: Sequence[Point]) -> float:
    """Theil and Sen: the median of the slopes between any two points, a second; 0 for one point.

    A single collection of garbage, or a single leap, does not bend it.
    """
    step = -(-len(points) // LONGEST_SERIES)
    thinned = points[:: max(step, 1)]
    slopes = [
        (later - earlier) / (until - since)
        for place, (since, earlier) in enumerate(thinned)
        for until, later in thinned[place + 1 :]
        if until > since
    ]
    return median(slopes) if slopes else 0.0
