from __future__ import annotations

from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.scheduled.queries.listing import Filter, parse, written_moment
from tests.analytics.builders import NOON
from topology.delays import EARLIEST, LATEST, MomentError, read_moment

HOUR = timedelta(hours=1)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(str.strip)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", NOON),
        (" NOW ", NOON),
        ("+2h", NOON + 2 * HOUR),
        ("-1d", NOON - 24 * HOUR),
        ("+1h30m", NOON + 1.5 * HOUR),
        ("in 2 hours", NOON + 2 * HOUR),
        ("In 60 min", NOON + HOUR),
        ("1 day ago", NOON - 24 * HOUR),
        ("2026-11-21", datetime(2026, 11, 21, tzinfo=UTC)),
        ("2026-11-21 15:30", datetime(2026, 11, 21, 15, 30, tzinfo=UTC)),
        ("2026-11-21T15:30:00.5Z", datetime(2026, 11, 21, 15, 30, 0, 500_000, tzinfo=UTC)),
        ("2026-11-21T15:30+02:00", datetime(2026, 11, 21, 13, 30, tzinfo=UTC)),
    ],
)
def test_a_moment_is_read_however_it_is_written(text: str, moment: datetime) -> None:
    assert read_moment(text, NOON) == moment


@pytest.mark.parametrize(
    "text",
    [
        "",
        "soon",
        "+",
        "+3",
        "+soon",
        "--1h",
        "2026-13-01",
        "15:30",
        "0001-01-01T00:00+14:00",
        "0001-01-01",
        "9999-12-31T23:59",
    ],
)
def test_what_is_no_moment_says_what_one_looks_like(text: str) -> None:
    with pytest.raises(MomentError, match="Enter a time such as now, "):
        read_moment(text, NOON)


def test_a_moment_past_the_calendar_is_none() -> None:
    with pytest.raises(MomentError):
        read_moment("+99w", datetime.max.replace(tzinfo=UTC))


@given(
    st.datetimes(
        EARLIEST.replace(tzinfo=None),
        LATEST.replace(tzinfo=None) - timedelta(days=1),
        timezones=st.just(UTC),
    )
)
def test_a_written_moment_is_read_back_to_the_second(moment: datetime) -> None:
    assert read_moment(written_moment(moment), NOON) == moment.replace(microsecond=0)


@given(st.fixed_dictionaries({"topology": WORDS, "destination": WORDS, "text": WORDS}))
def test_a_filter_is_written_back_as_it_was_read(values: dict[str, str]) -> None:
    wanted = parse(values | {"from": "-1d", "until": "+1d", "overdue": "1"}, NOON)
    again = dict(parse_qsl(wanted.url().removeprefix("?"), keep_blank_values=True))
    assert parse(again, NOON) == wanted


def test_a_filter_of_nothing_leaves_everything() -> None:
    assert parse({}, NOON) == Filter()
    assert not Filter().is_narrowed
    assert Filter().url() == "?"


def test_the_chosen_broker_stays_and_narrows_nothing() -> None:
    wanted = parse({"broker": "shop"}, NOON)
    assert not wanted.is_narrowed
    assert wanted.url(overdue="1") == "?broker=shop&overdue=1"


def test_a_part_of_the_query_can_be_changed_or_left_out() -> None:
    wanted = parse({"topology": "orders", "from": "now", "overdue": "1"}, NOON)
    assert wanted.url(from_="", until="+1h", overdue="") == "?topology=orders&until=%2B1h"
