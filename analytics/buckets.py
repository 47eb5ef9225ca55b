"""The buckets of lateness and of requested delays: fixed, so that any hours and days add up.

Lateness: early, on time, then ten buckets a decade from 1 ms to 28 hours, by the preferred numbers
of ISO 3 (R10). A percentile of added buckets is off by less than the width of its bucket: 28 %.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from datetime import timedelta

from analytics.events import CLOCK_RESOLUTION_MS

MANTISSAS = (1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0)
DECADES = 8
EARLY, ON_TIME, FIRST_LOG_BUCKET = 0, 1, 2
ON_TIME_MS = 1.0
EDGES_MS = (
    float(-CLOCK_RESOLUTION_MS),
    *(digit * 10**power for power in range(DECADES) for digit in MANTISSAS),
)
# Time after its due time when a message without a recorded exit is overdue: the recorder gathers
# copies before it shows them. After the second time Now warns, of messages and probes, and nightly
# figures miss it: the next worker after a kill reads within it.
OVERDUE_AFTER, LONG_OVERDUE = timedelta(seconds=1), timedelta(minutes=1)
SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
DELAY_EDGES_MS = (
    *(SECOND, 5 * SECOND, 30 * SECOND, 5 * MINUTE),
    *(HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY),
)
DELAY_LABELS = (
    *("under 1s", "1–5s", "5–30s", "30s–5m", "5m–1h"),
    *("1–6h", "6–24h", "1–7d", "7–30d", "over 30d"),
)
Counts = Mapping[int, int]


def bucket_of(ms: float) -> int:
    """The number of the bucket that holds this lateness."""
    return bisect_right(EDGES_MS, ms) if ms >= EDGES_MS[0] else EARLY


def bounds(bucket: int) -> tuple[float, float]:
    """The lower and upper end of a bucket in ms; the open ends are as wide as what they border
    on.
    """
    low = EDGES_MS[bucket - 1] if bucket else EDGES_MS[0]
    high = EDGES_MS[bucket] if bucket < len(EDGES_MS) else low * 1.25
    return low, high


def is_enough(number: int, share: float) -> bool:
    """Whether a percentile of so many messages leaves one above it: a p99 needs 100."""
    return number > 0 and (share >= 1 or round(number * (1 - share), 6) >= 1)


def percentile(counts: Counts, share: float) -> float | None:
    """The lateness in ms that this share of messages does not exceed; None of too few for it.

    Between the bounds of its bucket in proportion; early and on time are 0.
    """
    total = sum(counts.values())
    if not is_enough(total, share):
        return None
    wanted, passed = share * total, 0
    for bucket in sorted(counts):
        if passed + counts[bucket] >= wanted:
            if bucket < FIRST_LOG_BUCKET:
                return 0.0
            low, high = bounds(bucket)
            return low + (high - low) * max(wanted - passed, 0) / counts[bucket]
        passed += counts[bucket]
    return None


def within(counts: Counts, ms: float) -> int:
    """How many messages were at most so late, where `ms` is an edge of a bucket."""
    last = bucket_of(ms)
    return sum(number for bucket, number in counts.items() if bucket < last)
