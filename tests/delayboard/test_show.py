from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayboard.dead_letters.presentation import show
from delayboard.dead_letters.replay.edit_headers import HeaderRow, make_header_rows
from delayboard.dead_letters.replay.options import DEFAULTS
from delayboard.dead_letters.replay.targets import Targets
from tests.delayboard.builders import a_message, peeked_messages, shop
from tests.topology import strategies
from tests.topology.builders import a_queue
from topology.content.bodies import HEX_BYTES, SHOWN_BYTES, hex_dump, show_body
from topology.routing.matching.index import Index


def exactly(text: str) -> Any:
    """JSON with every number as it is written and every pair of every object."""
    return json.loads(
        text, parse_float=str, parse_int=str, parse_constant=str, object_pairs_hook=list
    )


@pytest.mark.parametrize(
    ("body", "pretty"),
    [
        (b'{"a":1}', '{\n  "a": 1\n}'),
        (b' [1, 2.5, "x"] ', '[\n  1,\n  2.5,\n  "x"\n]'),
        ('{"é": "ü"}'.encode(), '{\n  "é": "ü"\n}'),
        (b'{"n": 123456789012345678901234567890}', None),
        (b"[]", "[]"),
    ],
)
def test_json_is_indented(body: bytes, pretty: str | None) -> None:
    found = show_body(body)
    assert (found.form, found.is_cut, found.size) == ("json", False, len(body))
    assert found.text == pretty or pretty is None
    assert exactly(found.text) == exactly(body.decode())


@pytest.mark.parametrize(
    "body",
    [
        b'{"n": 1e5}',
        b'{"n": 1.10}',
        b'{"n": 12345678901234567890.5}',
        b'{"n": 0.1000000000000000055511151231257827}',
        b"[1e400]",
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 1}}',
        b'["\\u00e9"]',
        b'["\\ud800"]',
        b"[-0]",
        b"{not json}",
        b'{"cut": ',
        b"plain text",
        b'"a string"',
        b"[" * 5000 + b"]" * 5000,
    ],
)
def test_what_indenting_would_change_is_shown_as_it_came(body: bytes) -> None:
    found = show_body(body)
    assert (found.form, found.text, found.is_cut) == ("text", body.decode(), False)


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(json_values, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_nothing_is_ever_shown_as_another_json(value: Any, ascii: bool, indent: Any) -> None:
    body = json.dumps(value, ensure_ascii=ascii, indent=indent).encode()
    found = show_body(body)
    if found.form == "json":
        assert exactly(found.text) == exactly(body.decode())
    else:
        assert found.form in ("text", "hex")


@pytest.mark.parametrize(
    ("body", "form", "is_cut"),
    [
        (b"", "empty", False),
        (b"\xff\xfe", "hex", False),
        (b"a\x00b", "hex", False),
        (b"\x1b[31m", "hex", False),
        (b"tab\tline\r\n", "text", False),
        (b"x" * SHOWN_BYTES, "text", False),
        (b"x" * (SHOWN_BYTES + 1), "text", True),
        (b"[" + b"1," * SHOWN_BYTES + b"1]", "text", True),
        (b"\xff" * HEX_BYTES, "hex", False),
        (b"\xff" * (HEX_BYTES + 1), "hex", True),
    ],
)
def test_a_body_is_shown_in_its_form_and_cut_where_it_is_long(
    body: bytes, form: str, is_cut: bool
) -> None:
    found = show_body(body)
    assert (found.form, found.is_cut, found.size) == (form, is_cut, len(body))


@given(st.binary(max_size=100))
def test_every_body_can_be_shown(body: bytes) -> None:
    assert show_body(body).size == len(body)


def test_a_hex_dump_has_offset_bytes_and_what_is_printable() -> None:
    lines = hex_dump(bytes(range(48, 66))).splitlines()
    assert lines[0] == (
        "00000000  30 31 32 33 34 35 36 37 38 39 3a 3b 3c 3d 3e 3f  0123456789:;<=>?"
    )
    assert lines[1].startswith("00000010  40 41 ")
    assert lines[1].endswith("  @A")


@given(st.binary(max_size=200))
def test_a_hex_dump_holds_every_byte(data: bytes) -> None:
    pieces = [line[10:57] for line in hex_dump(data).splitlines()]
    assert bytes.fromhex(" ".join(pieces)) == data


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (True, "boolean", "true"),
        (5, "integer", "5"),
        (1.5, "float", "1.5"),
        (Decimal("1.50"), "decimal", "1.50"),
        ("text", "text", "text"),
        (b"\xff\x00", "bytes", "ff 00"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "time", "2026-01-02 03:04:05 UTC"),
        (None, "nothing", ""),
        ({"a": b"\xff"}, "table", '{\n  "a": "ff"\n}'),
        ([Decimal("1.5"), None], "list", '[\n  "1.5",\n  null\n]'),
    ],
)
def test_a_header_is_shown_with_its_type(value: Any, kind: str, text: str) -> None:
    assert make_header_rows({"h": value}) == (HeaderRow("h", kind, text),)


@given(strategies.headers)
def test_every_header_can_be_shown(headers: dict[str, Any]) -> None:
    for row in make_header_rows(headers):
        assert isinstance(row.text, str)
        assert row.type


def test_the_deepest_header_can_be_shown() -> None:
    deep: Any = b"end"
    for _ in range(100):
        deep = {"a": [deep]}
    (row,) = make_header_rows({"h": deep})
    assert "65 6e 64" in row.text


@pytest.mark.parametrize(
    ("queue", "expiration", "said"),
    [
        ("dead", None, ""),
        ("dead", "700", "The message is lost: the message expires in “dead” after 700ms"),
        ("wait", None, "The message arrives in orders within 5s."),
        ("wait", "odd", "The prediction ends: the expiration “odd”"),
        ("gone", None, "The prediction ends: the queue “gone” does not exist."),
    ],
)
def test_what_becomes_of_a_peeked_message_by_itself_is_said(
    queue: str, expiration: str | None, said: str
) -> None:
    there = shop(a_queue("wait", ttl=5000, dlx="", key="orders"))
    stated: dict[str, Any] = {} if expiration is None else {"expiration": expiration}
    (peeked_message,) = peeked_messages(a_message(headers={}, **stated))
    found = show(peeked_message, Targets(DEFAULTS, Index(there)), queue=queue, version=(4, 3, 6))
    assert found.onward.startswith(said)
    assert bool(found.onward) == bool(said)


def test_a_peeked_message_is_shown_whole() -> None:
    (peeked_message,) = peeked_messages(
        a_message(b'{"a":1}', message_id="m1", content_type="application/json")
    )
    found = show(peeked_message, Targets(DEFAULTS, Index(shop()), waits={"hold"}))
    assert found.body.form == "json"
    assert [row.name for row in found.headers] == ["x-death"]
    assert [(row.name, row.text) for row in found.properties] == [
        ("content_type", "application/json"),
        ("message_id", "m1"),
    ]
    assert found.target is not None
    assert (found.target.exchange, found.target.routing_key) == ("orders", "orders")
