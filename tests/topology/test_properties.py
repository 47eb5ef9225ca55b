from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology import strategies
from tests.topology.amqp_entries import table_entries
from tests.topology.strategies import short, sized
from tests.topology.stripping import stripped
from topology.broker.properties.field_values import FieldError, read_table
from topology.broker.properties.read import (
    build_properties,
    edit_properties,
    read_properties,
)
from topology.message import DEATH_HEADERS, REPLAY_HEADER, Properties

REMOVED = DEATH_HEADERS | {"CC", "BCC"}


def entries_of(properties: Properties) -> list[tuple[bytes, bytes]]:
    """The header names and their bytes, read apart from the code under test."""
    raw = properties.raw
    flags = struct.unpack(">H", raw[:2])[0]
    position = 2
    for place in (15, 14):
        if flags & 1 << place:
            position += 1 + raw[position]
    if not flags & 1 << 13:
        return []
    size = struct.unpack(">I", raw[position : position + 4])[0]
    inner = raw[position + 4 : position + 4 + size]
    return [(name, data) for name, _, data in table_entries(inner)]


@given(strategies.raw_properties())
def test_properties_of_every_type_are_read_without_a_problem_and_kept_as_they_came(
    raw: bytes,
) -> None:
    properties = read_properties(raw)
    assert properties.raw == raw
    assert properties.problems == ()
    assert edit_properties(properties).raw == raw
    assert len(properties.headers) == len({name for name, _ in entries_of(properties)}) or any(
        name.startswith("\\x") or "\\x" in name for name in properties.headers
    )


@given(strategies.raw_properties())
def test_a_replay_removes_exactly_what_dying_added_and_leaves_every_other_byte(
    raw: bytes,
) -> None:
    before = read_properties(raw)
    after = stripped(before, {REPLAY_HEADER: "id"})
    kept = [
        (name, data)
        for name, data in entries_of(before)
        if name.decode("utf-8", "backslashreplace") not in REMOVED | {REPLAY_HEADER}
        and not name.startswith(b"x-opt-")
    ]
    added = (REPLAY_HEADER.encode(), short(REPLAY_HEADER.encode()) + b"S" + sized(b"id"))
    assert entries_of(after) == [*kept, added]
    assert after.user_id is None
    assert after.stated() == {k: v for k, v in before.stated().items() if k != "user_id"}


@given(strategies.raw_properties())
def test_what_was_edited_is_what_is_read_of_its_bytes(raw: bytes) -> None:
    sent = stripped(read_properties(raw), {REPLAY_HEADER: "id", "delayboard-replays": 3})
    after = edit_properties(sent, stated={"expiration": "500"})
    assert after.expiration == "500"
    # As texts, for what is no number equals nothing.
    assert repr(after) == repr(read_properties(after.raw))


@pytest.mark.parametrize("inner", [b"\x01aS\x00\x00\x00\x09x", b"\x01a?", b"\x01aI\x00", b"\x09a"])
def test_headers_that_cannot_be_taken_apart_are_not_edited(inner: bytes) -> None:
    raw = b"\x20\x00" + sized(inner)
    with pytest.raises(FieldError):
        stripped(read_properties(raw), {REPLAY_HEADER: "id"})


def test_what_dying_added_leaves_no_empty_table_behind() -> None:
    dead = build_properties({"x-death": [], "x-first-death-queue": "q"}, message_id="m")
    assert stripped(dead, {}).raw == build_properties(message_id="m").raw


def test_a_set_header_replaces_all_of_its_name_and_a_property_can_be_dropped() -> None:
    raw = b"\x20\x80" + sized(strategies.table([(b"a", b"b\x01"), (b"a", b"b\x02")])) + short(b"m")
    edited = edit_properties(
        read_properties(raw), set_headers={"a": 5}, drop=frozenset({"message_id"})
    )
    assert (edited.headers, edited.message_id) == ({"a": 5}, None)
    assert entries_of(edited) == [(b"a", b"\x01aI\x00\x00\x00\x05")]


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "The properties are unreadable: cut off at byte 0."),
        (b"\x80", "The properties are unreadable: cut off at byte 1."),
        (b"\x80\x00", "The properties are unreadable: cut off at byte 2."),
        (b"\x80\x00\x05ab", "The properties are unreadable: cut off at byte 5."),
        (
            b"\x80\x01\x00\x00",
            "The properties are unreadable: property flags that AMQP 0-9-1 does not have.",
        ),
        (
            b"\x00\x02",
            "The properties are unreadable: property flags that AMQP 0-9-1 does not have.",
        ),
        (b"\x00\x00x", "The properties are unreadable: 1 bytes too many."),
        (b"\x20\x00" + sized(b"\x01aQ"), "The headers are unreadable: unknown field type b'Q'."),
        (b"\x20\x00" + sized(b"\x09a"), "The headers are unreadable: cut off at byte 2."),
    ],
)
def test_what_cannot_be_read_is_said_and_cannot_be_edited(raw: bytes, problem: str) -> None:
    properties = read_properties(raw)
    assert (properties.raw, properties.problems, properties.headers) == (raw, (problem,), {})
    with pytest.raises(FieldError):
        stripped(properties, {})


def test_the_properties_beside_unreadable_headers_are_read() -> None:
    raw = b"\x20\x80" + sized(b"\x01aQ") + short(b"m1")
    assert read_properties(raw).message_id == "m1"


@given(st.binary(max_size=80))
def test_garbage_never_makes_reading_fail(raw: bytes) -> None:
    properties = read_properties(raw)
    assert properties.raw == raw
    if not properties.problems:
        assert edit_properties(properties).raw == raw


@given(strategies.raw_properties(), st.data())
def test_properties_that_are_cut_never_make_reading_fail(raw: bytes, data: st.DataObject) -> None:
    cut = raw[: data.draw(st.integers(0, len(raw) - 1))]
    assert read_properties(cut).raw == cut
    if len(cut) != 2 or cut != b"\0\0":
        assert read_properties(cut).problems


def test_texts_that_are_no_utf_8_are_shown_escaped_and_kept() -> None:
    raw = b"\x80\x00" + short(b"\xff\x00")
    properties = read_properties(raw)
    assert properties.content_type == "\\xff\x00"
    assert edit_properties(properties).raw == raw


def test_a_time_past_the_year_9999_is_a_number_and_kept() -> None:
    raw = b"\x20\x40" + sized(b"\x01tT" + b"\xff" * 8) + b"\xff" * 8
    properties = read_properties(raw)
    assert properties.headers == {"t": 2**64 - 1}
    assert properties.timestamp == 2**64 - 1
    assert edit_properties(properties).raw == raw


def test_all_properties_can_be_built_and_read_back() -> None:
    stated: dict[str, Any] = {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "delivery_mode": 2,
        "priority": 0,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "500",
        "message_id": "é",
        "timestamp": 1_700_000_000,
        "type": "t",
        "user_id": "u",
        "app_id": "a",
        "cluster_id": "i",
    }
    headers = {"n": 1, "at": datetime(2026, 1, 1, tzinfo=UTC)}
    properties = build_properties(headers, **stated)
    assert properties.stated() == stated
    assert properties.headers == headers
    assert read_properties(properties.raw) == properties
    assert build_properties(None, message_id="", type=None).raw == b"\x00\x00"


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        ({"message_id": "é" * 128}, "message id has more than 255 bytes"),
        ({"priority": 256}, "priority must be between 0 and 255"),
        ({"delivery_mode": -1}, "delivery mode must be between 0 and 255"),
        ({"timestamp": -1}, "timestamp must be seconds since 1970"),
        ({"timestamp": 2**64}, "timestamp must be seconds since 1970"),
        ({"type": "\ud800"}, "invalid Unicode character"),
    ],
)
def test_a_property_that_amqp_cannot_carry_is_refused(
    stated: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(FieldError, match=sentence):
        build_properties(**stated)


@given(strategies.writable_headers)
def test_built_headers_are_those_that_were_asked_for(headers: dict[str, Any]) -> None:
    properties = build_properties(headers)
    assert set(properties.headers) == set(headers)
    assert read_table(b"".join(data for _, data in entries_of(properties))) == properties.headers
