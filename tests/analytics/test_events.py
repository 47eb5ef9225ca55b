from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analytics.events import (
    FIELDS,
    EventError,
    MessageEvent,
    bounded_headers,
    decode,
    encode,
)
from tests.analytics.builders import an_event

AT = datetime(2026, 11, 20, 7, 5, 9, 42, tzinfo=UTC)
A_LINE = encode(an_event(recorded_at=AT, attempt=2, deaths=3, tracking_id="t-1"))
MOMENTS = st.datetimes(timezones=st.just(UTC))
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def test_the_table_of_fields_names_exactly_the_fields_in_their_order() -> None:
    assert list(FIELDS) == [field.name for field in dataclasses.fields(MessageEvent)]


@given(
    recorded_at=MOMENTS,
    due_at=st.none() | MOMENTS,
    message_id=ANY_TEXT.map(lambda text: text.replace("\x00", "")),
    delay=st.integers(0, 2**40),
)
def test_every_event_is_one_line_and_comes_back(
    recorded_at: datetime, due_at: datetime | None, message_id: str, delay: int
) -> None:
    event = an_event(
        recorded_at=recorded_at, due_at=due_at, message_id=message_id, requested_delay_ms=delay
    )
    line = encode(event)
    assert b"\n" not in line
    assert decode(line) == event


def test_a_line_of_a_later_version_is_read_without_the_fields_nobody_knows_here() -> None:
    line = orjson.dumps(orjson.loads(A_LINE) | {"v": 2, "weather": "rain"})
    assert decode(line) == dataclasses.replace(decode(A_LINE), v=2)


def test_a_line_of_an_earlier_version_gets_defaults_for_what_it_lacks() -> None:
    values = orjson.loads(A_LINE)
    del values["tracking_id"], values["deaths"]
    assert decode(orjson.dumps(values)) == dataclasses.replace(
        decode(A_LINE), tracking_id="", deaths=0
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"recorded_at": "yesterday"}, "recorded_at is not a time"),
        ({"recorded_at": "2026-11-20T07:05:09"}, "has no time zone"),
        ({"recorded_at": 5}, "recorded_at is not a time"),
        ({"recorded_at": "0001-01-01T00:00:00+14:00"}, "recorded_at is not a valid time in UTC"),
        ({"attempt": "2"}, "attempt must be a integer, not a str"),
        ({"attempt": True}, "attempt must be a integer, not a bool"),
        ({"caught_up": 1}, "caught_up must be a boolean"),
        ({"message_id": None}, "message_id must be a text"),
        ({"failures": {}}, "failures must be a list of failures, not a dict"),
        ({"failures": [5]}, "field failures is not a failure"),
        ({"failures": [{"queue": "q", "reason": "r", "count": 0}]}, "failures is not a failure"),
        ({"failures": [{"queue": "q", "reason": 7, "count": 1}]}, "failures is not a failure"),
    ],
)
def test_a_field_of_a_wrong_type_is_an_error_that_names_it(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(EventError, match=sentence):
        decode(orjson.dumps(orjson.loads(A_LINE) | changes))


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"7", b"{}", b'{"v":1}', A_LINE[:-1], b"\xff"])
def test_what_is_no_event_is_an_error(line: bytes) -> None:
    with pytest.raises(EventError):
        decode(line)


@given(st.binary())
def test_no_bytes_raise_anything_else(line: bytes) -> None:
    with pytest.raises(EventError, match=r"\.$"):
        decode(line)


HEADER_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.decimals()
    | st.datetimes(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), HEADER_VALUES), st.integers(200, 2000))
def test_any_headers_become_a_json_object_within_the_limit(
    headers: dict[str, Any], limit: int
) -> None:
    text = bounded_headers(headers, limit)
    assert len(text.encode()) <= limit
    assert "\n" not in text
    assert isinstance(json.loads(text), dict)


def test_headers_without_room_are_counted_and_long_texts_cut() -> None:
    shown = json.loads(bounded_headers({"a": "x" * 2000, "b": "y" * 900, "c": 1}, limit=1500))
    assert shown["a"] == "x" * 1000 + "… (2000 characters)"
    assert shown["c"] == 1
    assert shown["(left out)"] == "1 of 3 headers"


def test_values_that_json_has_no_form_for_are_shown_as_text() -> None:
    headers = {
        "raw": b"\xffok",
        "exact": Decimal("1.50"),
        "at": AT,
        "nan": float("nan"),
        "huge": 2**70,
        "torn": "\udc80",
    }
    assert json.loads(bounded_headers(headers)) == {
        "raw": "\\xffok",
        "exact": "1.50",
        "at": "2026-11-20T07:05:09.000042+00:00",
        "nan": "nan",
        "huge": str(2**70),
        "torn": "\\udc80",
    }
