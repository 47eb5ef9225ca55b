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
GOLDEN = (
    b'{"v":1,"event_id":"9f2c:17","kind":"scheduled","recorded_at":"2026-11-20T07:05:09.000042Z",'
    b'"caught_up":true,"source":"tap","broker":"main","vhost":"/","topology":"orders",'
    b'"pattern":"retry_pair","exchange":"orders-retry","routing_key":"orders",'
    b'"queue":"orders-retry","destination":"orders","message_id":"m-1","correlation_id":"c-1",'
    b'"content_id":"00ff","requested_delay_ms":300000,'
    b'"published_at":"2026-11-20T07:05:00.000000Z","published_at_source":"delayboard",'
    b'"due_at":"2026-11-20T07:10:09.000042Z","attempt":2,"replay_id":"r-1",'
    b'"exception_type":"TimeoutError","death_reason":"rejected","death_queue":"orders",'
    b'"deaths":3,"redelivered":false,"size_bytes":512,"headers_json":"{\\"a\\":1}",'
    b'"tracking_id":"t-1"}'
)
GOLDEN_EVENT = MessageEvent(
    event_id="9f2c:17",
    kind="scheduled",
    recorded_at=AT,
    caught_up=True,
    source="tap",
    broker="main",
    vhost="/",
    topology="orders",
    pattern="retry_pair",
    exchange="orders-retry",
    routing_key="orders",
    queue="orders-retry",
    destination="orders",
    message_id="m-1",
    correlation_id="c-1",
    content_id="00ff",
    requested_delay_ms=300_000,
    published_at=AT.replace(second=0, microsecond=0),
    published_at_source="delayboard",
    due_at=AT.replace(minute=10),
    attempt=2,
    replay_id="r-1",
    exception_type="TimeoutError",
    death_reason="rejected",
    death_queue="orders",
    deaths=3,
    size_bytes=512,
    headers_json='{"a":1}',
    tracking_id="t-1",
)
MOMENTS = st.datetimes(timezones=st.just(UTC))
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def test_the_golden_line_of_version_1_is_still_written_and_read() -> None:
    assert encode(GOLDEN_EVENT) == GOLDEN
    assert decode(GOLDEN) == GOLDEN_EVENT


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
    line = orjson.dumps(orjson.loads(GOLDEN) | {"v": 2, "weather": "rain"})
    assert decode(line) == dataclasses.replace(GOLDEN_EVENT, v=2)


def test_a_line_of_an_earlier_version_gets_defaults_for_what_it_lacks() -> None:
    values = orjson.loads(GOLDEN)
    del values["tracking_id"], values["deaths"]
    assert decode(orjson.dumps(values)) == dataclasses.replace(
        GOLDEN_EVENT, tracking_id="", deaths=0
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"recorded_at": "yesterday"}, "recorded_at is no moment"),
        ({"recorded_at": "2026-11-20T07:05:09"}, "says no time zone"),
        ({"recorded_at": 5}, "recorded_at is no moment"),
        ({"attempt": "2"}, "attempt should be a integer, not str"),
        ({"attempt": True}, "attempt should be a integer, not bool"),
        ({"caught_up": 1}, "caught_up should be a boolean"),
        ({"message_id": None}, "message_id should be a text"),
    ],
)
def test_a_field_of_a_wrong_type_is_an_error_that_names_it(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(EventError, match=sentence):
        decode(orjson.dumps(orjson.loads(GOLDEN) | changes))


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"7", b"{}", b'{"v":1}', GOLDEN[:-1], b"\xff"])
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
