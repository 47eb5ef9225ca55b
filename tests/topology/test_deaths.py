from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology import strategies
from topology.deaths import newest_death, read_history

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def entry(queue: Any, reason: Any = "expired", *, second: Any = 0, **more: Any) -> dict[str, Any]:
    """One entry of x-death as 3.10.8 and 4.x write it."""
    return {
        "count": 1,
        "reason": reason,
        "queue": queue,
        "time": NOON + timedelta(seconds=second),
        "exchange": f"to-{queue!s}",
        "routing-keys": ["k"],
        **more,
    }


def order(headers: dict[str, Any]) -> list[tuple[str, bool]]:
    return [(d.queue, d.order_is_inferred) for d in read_history(headers).deaths]


def test_an_entry_is_read_whole() -> None:
    one = entry("q", "rejected", count=3, **{"original-expiration": "500", "routing-keys": ["a"]})
    (death,) = read_history({"x-death": [one]}).deaths
    assert (death.queue, death.reason, death.count, death.first_at) == ("q", "rejected", 3, NOON)
    assert (death.exchange, death.routing_keys) == ("to-q", ("a",))
    assert (death.original_expiration, death.order_is_inferred) == ("500", False)


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("rejected", "a consumer rejected the message"),
        ("expired", "the message TTL ended"),
        ("maxlen", "the queue was full"),
        ("delivery_limit", "the message exceeded the delivery limit"),
        ("melted", "for the reason “melted”"),
    ],
)
def test_every_reason_is_told_in_words(reason: str, why: str) -> None:
    assert read_history({"x-death": [entry("q", reason)]}).deaths[0].why == why


LADDER_4 = [entry("work", "rejected", second=0), entry("rung3", second=7), entry("rung2", second=4)]
LADDER_3 = [entry("work", "rejected", second=0), entry("rung2", second=4), entry("rung3", second=7)]


@pytest.mark.parametrize("entries", [LADDER_4, LADDER_3], ids=["4.x", "3.10.8"])
def test_a_ladder_is_told_by_time_in_whatever_order_the_broker_lists_it(
    entries: list[dict[str, Any]],
) -> None:
    assert order({"x-death": entries}) == [("work", False), ("rung2", False), ("rung3", False)]


def test_in_one_second_the_list_is_read_backwards_and_said_to_be_a_guess() -> None:
    entries = [entry("last"), entry("middle"), entry("first"), entry("later", second=1)]
    assert order({"x-death": entries}) == [
        ("first", True),
        ("middle", True),
        ("last", True),
        ("later", False),
    ]


def test_the_first_death_is_known_from_its_own_headers() -> None:
    entries = [entry("first", "rejected"), entry("then")]
    reported = {"x-first-death-queue": "first", "x-first-death-reason": "rejected"}
    assert order({"x-death": entries, **reported}) == [("first", False), ("then", True)]


def test_without_a_time_an_entry_stands_last_and_is_a_guess() -> None:
    entries = [entry("unknown", time=None), entry("known")]
    assert order({"x-death": entries}) == [("known", False), ("unknown", True)]


def test_deaths_are_counted_by_queue_and_reason() -> None:
    entries = [entry("q", "rejected", count=2), entry("q", "expired"), entry("r", count=4)]
    history = read_history({"x-death": entries})
    assert history.total == 7
    assert (history.count("q", "rejected"), history.count("r", "expired")) == (2, 4)
    assert history.count("q", "maxlen") == 0


def test_the_first_failure_is_the_earliest_that_is_no_expiry() -> None:
    entries = [entry("b", "maxlen", second=9), entry("a", "rejected", second=5), entry("hold")]
    first = read_history({"x-death": entries}).first_failure
    assert first is not None
    assert first.queue == "a"
    assert read_history({"x-death": [entry("hold")]}).first_failure is None


@pytest.mark.parametrize(
    ("raw", "problems"),
    [
        (None, ()),
        ([], ()),
        ("text", ("x-death is not a list",)),
        (b"bytes", ("x-death is not a list",)),
        ({"count": 1}, ("x-death is not a list",)),
        (7, ("x-death is not a list",)),
        ([7], ("entry 1 is not a table",)),
        (
            [{}],
            (
                "entry 1: the field queue is missing or not text",
                "entry 1: the field reason is missing or not text",
            ),
        ),
        ([entry("q"), entry("r", count=0)], ("entry 2: the count is not a positive number",)),
        ([entry("q", count=True)], ("entry 1: the count is not a positive number",)),
        ([entry("q", count="2")], ("entry 1: the count is not a positive number",)),
        ([entry("q", **{"routing-keys": "k"})], ("entry 1: the routing keys are not a list",)),
        ([entry("q", **{"routing-keys": None})], ("entry 1: the routing keys are not a list",)),
        ([entry(b"\xff")], ("entry 1: the field queue is missing or not text",)),
    ],
)
def test_what_cannot_be_read_is_said_and_the_rest_is_read(
    raw: Any, problems: tuple[str, ...]
) -> None:
    assert read_history({"x-death": raw}).problems == problems


def test_bytes_that_are_no_text_are_shown_escaped() -> None:
    (death,) = read_history({"x-death": [entry(b"\xff", **{"routing-keys": [b"\xfe", 5]})]}).deaths
    assert (death.queue, death.routing_keys) == ("\\xff", ("\\xfe", "5"))


@pytest.mark.parametrize("seconds", [10**30, -(10**30), 99_999_999_999_999, True, "now", 1.5])
def test_a_time_that_is_none_is_none(seconds: Any) -> None:
    assert read_history({"x-death": [entry("q", time=seconds)]}).deaths[0].first_at is None


def test_a_time_in_seconds_or_without_a_zone_is_utc() -> None:
    naive = NOON.replace(tzinfo=None)
    for value in (int(NOON.timestamp()), naive):
        assert read_history({"x-death": [entry("q", time=value)]}).deaths[0].first_at == NOON


def test_huge_counts_add_up() -> None:
    entries = [entry("q", count=2**63 - 1), entry("r", count=2**63 - 1)]
    assert read_history({"x-death": entries}).total == 2**64 - 2


def test_a_thousand_entries_and_nesting_a_hundred_deep_are_read_at_once() -> None:
    deep: Any = "end"
    for _ in range(100):
        deep = [{"a": deep}]
    entries = [entry(f"q{n}", second=n // 3, exchange=deep) for n in range(1000)]
    began = time.thread_time()
    deaths = read_history({"x-death": entries}).deaths
    assert time.thread_time() - began < 1
    assert [d.queue for d in deaths[:6]] == ["q2", "q1", "q0", "q5", "q4", "q3"]
    assert len(deaths) == 1000


hostile = st.one_of(
    strategies.header_values,
    st.lists(
        st.dictionaries(
            st.sampled_from(["count", "reason", "queue", "time", "exchange", "routing-keys"]),
            st.one_of(strategies.header_values, st.integers(), st.datetimes()),
        )
    ),
)


@given(
    st.dictionaries(
        st.sampled_from(["x-death", "x-first-death-queue", "x-last-death-queue"]), hostile
    )
)
def test_no_header_makes_reading_fail_and_the_oldest_comes_first(headers: dict[str, Any]) -> None:
    history = read_history(headers)
    known = [death.first_at for death in history.deaths if death.first_at]
    assert known == sorted(known)
    assert all(death.count >= 1 for death in history.deaths)
    newest = newest_death(headers)
    assert newest is None or all(isinstance(part, str) for part in newest)


@pytest.mark.parametrize(
    ("headers", "newest"),
    [
        ({}, None),
        ({"x-death": []}, None),
        ({"x-death": "text"}, None),
        ({"x-death": [5]}, None),
        ({"x-death": [entry("a", "rejected"), entry("b")]}, ("a", "rejected")),
        (
            {
                "x-death": [entry("a")],
                "x-last-death-queue": "b",
                "x-last-death-reason": "maxlen",
            },
            ("b", "maxlen"),
        ),
        ({"x-death": [entry("a")], "x-last-death-queue": "b"}, ("a", "expired")),
        ({"x-death": [entry(b"\xff")]}, ("\\xff", "expired")),
        ({"x-death": [{}]}, ("", "")),
    ],
)
def test_the_newest_death_is_the_brokers_word_or_the_first_of_the_list(
    headers: dict[str, Any], newest: tuple[str, str] | None
) -> None:
    assert newest_death(headers) == newest
