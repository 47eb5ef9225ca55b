from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.delays import (
    DelayError,
    format_delay,
    format_ms,
    format_span,
    milliseconds,
    parse_delay,
)

SPANS = [
    (0, "0s"),
    (0.04, "0s"),
    (0.4, "0.4ms"),
    (9.96, "10ms"),
    (64, "64ms"),
    (999.7, "1s"),
    (2000, "2s"),
    (2060, "2.1s"),
    (59_960, "1m"),
    (90_500, "1m 31s"),
    (3_599_400, "59m 59s"),
    (3_599_500, "1h"),
    (5_400_000, "1h 30m"),
    (131_072_000, "1d 12h"),
    (86_399_000, "1d"),
    (30 * 86_400_000, "30d"),
    (31_535_999_000, "1y"),
    (268_435_455_000, "8y 187d"),
    (3650 * 86_400_000, "10y"),
]
"""Milliseconds, and what Python and times.js write."""
HUNDRED_YEARS_MS = 100 * 365 * 86_400_000


@given(st.integers(0, HUNDRED_YEARS_MS))
def test_every_millisecond_is_read_back_as_it_was_written(ms: int) -> None:
    delay = timedelta(milliseconds=ms)
    assert parse_delay(format_delay(delay)) == delay


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90", 90_000),
        ("1.5", 1500),
        ("250ms", 250),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("10y", 315_360_000_000),
        ("0.4ms", 1),
        (" 2d 4h ", 187_200_000),
        ("5 M", 300_000),
        ("1w", 604_800_000),
        ("0s", 0),
        ("2.5s", 2500),
        ("20 s", 20_000),
        ("1 min", 60_000),
        ("2 Hours 5 minutes", 7_500_000),
        ("5 years", 157_680_000_000),
        ("3 weeks 1 day", 1_900_800_000),
        ("10 msec", 10),
    ],
)
def test_what_people_write_is_understood(text: str, ms: int) -> None:
    assert parse_delay(text) == timedelta(milliseconds=ms)


@pytest.mark.parametrize(
    "text",
    [
        *("five", "-5s", "5 5", "1h30", "5 year s", "1,5s", "5s!", "s", "²", "1e3", "\t"),
        *("5 months", "in 2 hours", "1 hour and 5 minutes"),
    ],
)
def test_anything_else_is_refused_with_an_example_of_a_good_one(text: str) -> None:
    with pytest.raises(DelayError, match=r"Enter a duration such as 90s, 5 min, 1h 30m or 250ms\."):
        parse_delay(text)


@pytest.mark.parametrize("text", ["101w 99y", "36501d", "9" * 5000 + "h"])
def test_a_hundred_years_are_enough(text: str) -> None:
    with pytest.raises(DelayError, match=r"is longer than a hundred years\.|is not a duration"):
        parse_delay(text)


@pytest.mark.parametrize(
    ("delay", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(milliseconds=90_500), "1m 30.5s"),
        (timedelta(days=8, hours=1), "8d 1h"),
        (timedelta(seconds=131_072), "1d 12h 24m 32s"),
        (timedelta(seconds=-90), "-1m 30s"),
        (timedelta(microseconds=1), "1ms"),
    ],
)
def test_a_delay_is_written_in_its_largest_units(delay: timedelta, text: str) -> None:
    assert format_delay(delay) == text


@given(st.integers(-(10**12), 10**12))
def test_milliseconds_are_rounded_up_so_that_no_delay_is_made_shorter(us: int) -> None:
    delay = timedelta(microseconds=us)
    rounded = timedelta(milliseconds=milliseconds(delay))
    assert delay <= rounded < delay + timedelta(milliseconds=1)


@pytest.mark.parametrize(("ms", "text"), SPANS)
def test_a_measured_duration_has_at_most_two_units(ms: float, text: str) -> None:
    assert format_ms(ms) == text
    assert format_ms(-ms) == (f"-{text}" if text != "0s" else text)


@given(st.integers(0, 1000 * HUNDRED_YEARS_MS))
def test_a_duration_as_displayed_is_accepted(us: int) -> None:
    text = format_span(timedelta(microseconds=us))
    assert len(text.split()) <= 2
    read = parse_delay(text)
    assert us < 10_000 or format_span(read) == text
