from __future__ import annotations

import random

import pytest

from analytics import buckets

# The widest bucket ends 28 % above its begin.
WIDEST = max(high / low for low, high in map(buckets.bounds, range(2, len(buckets.EDGES_MS))))


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99, 1.0])
def test_a_percentile_of_added_histograms_is_as_precise_as_promised(share: float) -> None:
    chance = random.Random(5)
    values = sorted(chance.lognormvariate(3, 2) + 1 for _ in range(5000))
    exact = values[int(share * len(values)) - 1]
    counts: dict[int, int] = {}
    for value in values:
        bucket = buckets.bucket_of(value)
        counts[bucket] = counts.get(bucket, 0) + 1
    found = buckets.percentile(counts, share)
    assert found is not None
    assert exact / WIDEST <= found <= exact * WIDEST
    assert pytest.approx(1.28) == WIDEST


def test_a_value_lies_between_the_bounds_of_its_bucket() -> None:
    for ms in (1.0, 1.249, 1.25, 999.9, 1000.0, 7.9e7):
        low, high = buckets.bounds(buckets.bucket_of(ms))
        assert low <= ms < high
    assert buckets.bucket_of(-51) == buckets.EARLY
    assert buckets.bucket_of(-50) == buckets.bucket_of(0.9) == buckets.ON_TIME
    assert buckets.bucket_of(1e12) == len(buckets.EDGES_MS)


def test_within_a_limit_is_everything_below_its_edge() -> None:
    counts = {buckets.EARLY: 1, buckets.ON_TIME: 2, buckets.bucket_of(999): 4}
    assert buckets.within(counts | {buckets.bucket_of(1000): 8}, 1000) == 7


@pytest.mark.parametrize(("share", "least"), [(0.5, 2), (0.9, 10), (0.95, 20), (0.99, 100), (1, 1)])
def test_a_percentile_needs_one_message_above_it(share: float, least: int) -> None:
    bucket = buckets.bucket_of(5)
    assert buckets.percentile({bucket: least}, share) is not None
    assert buckets.percentile({bucket: least - 1}, share) is None
