"""Names of delay queues that state a time, and those whose TTL is another."""

from __future__ import annotations

import pytest

from tests.topology.builders import a_queue, a_snapshot
from topology.definitions import Binding, Definitions, Exchange
from topology.provisioning.recognition import read_stated_ms, recognize, untrue_names


@pytest.mark.parametrize(
    ("name", "ms"),
    [
        ("60s", 60_000),
        ("orders_60s", 60_000),
        ("orders.retry-1h30m", 5_400_000),
        ("retry:250ms:orders", 250),
        ("Orders 5M", 300_000),
        ("orders", None),
        ("orders.60", None),
        ("orders-s60", None),
        ("orders.5s.10s", None),
        ("s3.bucket", None),
        ("99999999999999w", None),
        ("999999999999w", None),
    ],
)
def test_a_name_states_a_time_where_a_part_of_it_is_one(name: str, ms: int | None) -> None:
    assert read_stated_ms(name) == ms


def test_a_name_with_another_time_is_a_sentence() -> None:
    queues = [a_queue("a.60s", ttl=6000), a_queue("b.60s", ttl=60_000), a_queue("c.60s")]
    found = Definitions.of(queues)
    assert untrue_names(["c.60s", "b.60s", "a.60s", "gone.5s"], found) == (
        "The name of the queue “a.60s” states 1m, but the TTL is 6s.",
    )


def test_what_is_recognised_says_so() -> None:
    found = Definitions.of(
        [
            Exchange("retry", "fanout"),
            Exchange("back", "fanout"),
            a_queue("work", dlx="retry"),
            a_queue("work.60s", ttl=6000, dlx="back"),
            Binding("retry", "work.60s", ""),
            Binding("back", "work", ""),
        ]
    )
    (one,) = recognize(a_snapshot(found)).found
    assert one.untrue_names == ("The name of the queue “work.60s” states 1m, but the TTL is 6s.",)
