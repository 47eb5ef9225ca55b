from __future__ import annotations

import struct
import time
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology import strategies
from tests.topology.amqp_entries import Reader, read_value, table_entries
from tests.topology.strategies import sized
from topology.broker.properties.field_values import (
    MAXIMUM_NESTING,
    FieldError,
    read_table,
    write_table,
    write_value,
)

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_the_broker_s_types_are_read_and_ours_written_back() -> None:
    """From rabbit_binary_parser.erl: tag, bytes, value."""
    read_only = [
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"s\xff\xfe", -2),
        (b"u\xff\xfe", 65534),
        (b"i\xff\xff\xff\xff", 4294967295),
        (b"L" + struct.pack(">q", -5), -5),
        (b"f\x40\x60\x00\x00", 3.5),
        (b"t\x07", True),
        (b"T" + struct.pack(">Q", 2**48), 2**48),
        (b"S" + sized(b"\xff\xfe"), b"\xff\xfe"),
        (b"D\x00\x7f\xff\xff\xff", Decimal(2147483647)),
    ]
    both_ways = [
        (b"I\x80\x00\x00\x00", -(2**31)),
        (b"l" + struct.pack(">q", 2**31), 2**31),
        (b"d" + struct.pack(">d", 0.1), 0.1),
        (b"t\x01", True),
        (b"t\x00", False),
        (b"T" + struct.pack(">Q", int(MOMENT.timestamp())), MOMENT),
        (b"D\x01\x00\x00\x00\x0f", Decimal("1.5")),
        (b"S" + sized("é".encode()), "é"),
        (b"x" + sized(b"\xff"), b"\xff"),
        (b"V", None),
        (b"F" + sized(b"\x01aV"), {"a": None}),
        (b"A" + sized(b"Vt\x01"), [None, True]),
    ]
    for raw, value in [*read_only, *both_ways]:
        read = read_value(Reader(raw))
        assert (type(read), read) == (type(value), value), raw
    for raw, value in both_ways:
        assert write_value(value) == raw


@given(strategies.raw_entries)
def test_the_entries_of_a_table_are_its_bytes_in_its_order(
    entries: list[tuple[bytes, bytes]],
) -> None:
    raw = strategies.table(entries)
    found = table_entries(raw)
    assert [name for name, _, _ in found] == [name for name, _ in entries]
    assert b"".join(data for _, _, data in found) == raw
    assert len(read_table(raw)) <= len(entries)


@given(strategies.writable_headers)
def test_what_was_written_is_read_back(headers: dict[str, Any]) -> None:
    raw = write_table(headers)
    assert read_table(Reader(raw).long_string()) == _in_whole_seconds(headers)


def _in_whole_seconds(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(microsecond=0)
    if isinstance(value, dict):
        return {name: _in_whole_seconds(inner) for name, inner in value.items()}
    return [_in_whole_seconds(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (2**63, "does not fit into 64 bits"),
        (Decimal("1E-300"), "does not fit into an AMQP decimal"),
        (Decimal("99999999999"), "does not fit into an AMQP decimal"),
        (Decimal("NaN"), "does not fit into an AMQP decimal"),
        (Decimal("1E+5"), "does not fit into an AMQP decimal"),
        ("\ud800", "contains an invalid Unicode character"),
        ({"\udfff": 1}, "contains an invalid Unicode character"),
        ({"n" * 256: 1}, "has more than 255 bytes"),
        ([object()], "A header cannot hold a object"),
    ],
)
def test_what_amqp_cannot_carry_is_refused_with_a_sentence(value: Any, sentence: str) -> None:
    with pytest.raises(FieldError, match=sentence):
        write_value(value)


@given(st.binary(max_size=60))
def test_garbage_is_a_field_error_or_a_table(raw: bytes) -> None:
    with suppress(FieldError):
        assert isinstance(read_table(raw), dict)


@given(strategies.raw_entries.filter(bool), st.data())
def test_a_table_that_is_cut_is_told_from_a_whole_one(
    entries: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    raw = strategies.table(entries)
    cut = data.draw(st.integers(1, len(raw) - 1))
    with suppress(FieldError):
        assert b"".join(piece for _, _, piece in table_entries(raw[:cut])) == raw[:cut]


def nested(tag: bytes, depth: int) -> bytes:
    inner = b""
    for _ in range(depth):
        value = tag + sized(inner)
        inner = b"\x01a" + value if tag == b"F" else value
    return inner if tag == b"F" else b"\x01a" + inner


@pytest.mark.parametrize("tag", [b"F", b"A"])
def test_a_nesting_bomb_is_refused_at_once(tag: bytes) -> None:
    raw = nested(tag, 15_000)
    assert len(raw) > 70_000
    began = time.thread_time()
    with pytest.raises(FieldError, match=f"nested more than {MAXIMUM_NESTING} deep"):
        read_table(raw)
    assert time.thread_time() - began < 1


@pytest.mark.parametrize("kind", [dict, list])
def test_what_is_nested_too_deep_to_be_read_is_not_written(kind: type) -> None:
    value: Any = "end"
    for _ in range(900):
        value = {"a": value} if kind is dict else [value]
    with pytest.raises(FieldError, match="nested more than"):
        write_table({"a": value})


def test_a_broad_table_is_read_in_a_moment() -> None:
    raw = b"".join(b"\x05%05dA" % n + sized(b"V" * 10) for n in range(10_000))
    began = time.thread_time()
    assert len(read_table(raw)) == 10_000
    assert time.thread_time() - began < 1
