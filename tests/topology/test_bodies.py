from __future__ import annotations

import gzip
import json
import random
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.content import bodies
from topology.content.bodies import (
    FOLDED_DEPTH,
    FOLDED_LINES,
    UNPACKED_BYTES,
    BodyLine,
    Unpacked,
    folded,
    show_body,
    unpack,
)
from topology.content.text import count_text

TEXT = b'{"a": 1.10}'


def raw_deflate(data: bytes) -> bytes:
    engine = zlib.compressobj(wbits=-15)
    return engine.compress(data) + engine.flush()


@pytest.mark.parametrize(
    ("packed", "encoding", "how"),
    [
        (gzip.compress(TEXT, mtime=0), "gzip", "gzip"),
        (gzip.compress(TEXT, mtime=0), "", "gzip"),
        (gzip.compress(TEXT[:5], mtime=0) + gzip.compress(TEXT[5:], mtime=0), "", "gzip"),
        (zlib.compress(TEXT), "deflate", "deflate"),
        (raw_deflate(TEXT), " Deflate", "deflate"),
        (TEXT, "", ""),
        (TEXT, "utf-8", ""),
    ],
)
def test_what_is_packed_is_unpacked(packed: bytes, encoding: str, how: str) -> None:
    found = unpack(packed, encoding)
    assert (found.data, found.how, found.notes) == (TEXT, how, ())
    shown = show_body(packed, "application/json", encoding)
    assert shown.size == len(packed)
    assert shown.unpacked == (len(TEXT) if how else None)
    assert "1.1" in shown.text


@pytest.mark.parametrize(
    ("packed", "encoding", "said"),
    [
        (gzip.compress(TEXT, mtime=0)[:-12], "", "The compressed data is incomplete"),
        (gzip.compress(TEXT, mtime=0) + b"rest", "", "the data after the first 11 bytes"),
        (b"\x1f\x8b\x08damaged", "", "cannot decompress the body with gzip"),
        (b"plain", "gzip", "The message declares gzip, but the body is not gzip."),
        (b"plain", "deflate", "cannot decompress the body with deflate"),
        (b"\x28\xb5\x2f\xfd1234", "", "does not decompress zstd"),
        (b"1234", "br", "does not decompress br"),
    ],
)
def test_what_cannot_be_unpacked_is_said(packed: bytes, encoding: str, said: str) -> None:
    assert said in unpack(packed, encoding).notes[0]
    assert said in show_body(packed, "", encoding).notes[0]


def test_a_bomb_is_unpacked_up_to_a_size() -> None:
    bomb = gzip.compress(bytes(20 * UNPACKED_BYTES))
    found = unpack(bomb)
    assert len(found.data) == UNPACKED_BYTES
    assert found.notes == ("Delayboard decompressed only the first 5\u202f000\u202f000 bytes.",)
    many = gzip.compress(bytes(UNPACKED_BYTES - 1)) * 3
    assert len(unpack(many).data) == UNPACKED_BYTES


@given(st.binary(max_size=80), st.sampled_from(["", "gzip", "deflate", "zstd"]))
def test_nothing_breaks_unpacking(data: bytes, encoding: str) -> None:
    unpack(data, encoding)
    unpack(b"\x1f\x8b\x08" + data, encoding)


@pytest.mark.parametrize(
    ("body", "kind", "encoding", "text", "charset"),
    [
        ("é".encode("latin-1"), "text/plain; charset=ISO-8859-1", "", "é", "iso-8859-1"),
        ("é".encode("utf-16"), 'text/plain; a=b; CharSet="utf-16"', "", "é", "utf-16"),
        ("é".encode("cp1252"), "text/plain", "windows-1252", "é", "windows-1252"),
        ("é".encode(), "text/plain; charset=punycode", "", "é", "utf-8"),
        ("é".encode(), "text/plain; charset", "binary", "é", "utf-8"),
    ],
)
def test_the_charset_that_it_says_is_honoured(
    body: bytes, kind: str, encoding: str, text: str, charset: str
) -> None:
    found = show_body(body, kind, encoding)
    assert (found.form, found.text, found.charset) == ("text", text, charset)


def test_a_wrong_charset_is_said() -> None:
    found = show_body(b"\xff\xfe\xff", "text/plain; charset=ascii")
    assert (found.form, found.notes) == (
        "hex",
        ("The message declares the charset ascii, but the body is not ascii.",),
    )


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("application/x-protobuf", "protobuf"),
        ("application/vnd.google.protobuf; proto=A", "protobuf"),
        ("application/msgpack", "MessagePack"),
        ("application/x-msgpack", "MessagePack"),
        ("application/x-python-serialize", "a Python pickle"),
    ],
)
def test_what_is_no_text_is_shown_as_bytes_under_its_name(kind: str, named: str) -> None:
    found = show_body(b"looks like text", kind)
    assert (found.form, found.named) == ("hex", named)


def test_a_document_is_folded_with_its_numbers_as_they_are_written() -> None:
    assert folded(b'{"a": 1e5, "a": [12345678901234567890.10, null, "x"], "e": {}}') == (
        BodyLine("open", "", "object", "", 3, 0),
        BodyLine("value", "a", "number", "1e5", 0, 1),
        BodyLine("open", "a", "list", "", 3, 1),
        BodyLine("value", "0", "number", "12345678901234567890.10", 0, 2),
        BodyLine("value", "1", "word", "null", 0, 2),
        BodyLine("value", "2", "text", "x", 0, 2),
        BodyLine("close", "a", "list", "", 3, 1),
        BodyLine("value", "e", "object", "{}", 0, 1),
        BodyLine("close", "", "object", "", 3, 0),
    )


@pytest.mark.parametrize("body", [b"", b"text", b"12", b'{"cut":', b"\xff", b"[" * 100_000])
def test_what_is_no_document_is_not_folded(body: bytes) -> None:
    assert folded(body) == ()


def test_a_document_is_folded_up_to_a_depth_and_a_length() -> None:
    deep = b'{"a":' * 300 + b"1" + b"}" * 300
    lines = folded(deep)
    assert max(line.depth for line in lines) == FOLDED_DEPTH
    assert sum(line.does == "open" for line in lines) == FOLDED_DEPTH
    assert folded(json.dumps(list(range(FOLDED_LINES))).encode()) == ()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)


@given(st.lists(json_values))
def test_what_is_opened_is_closed(value: Any) -> None:
    depth = 0
    for line in folded(json.dumps(value).encode()):
        depth -= line.does == "close"
        assert line.depth == depth
        depth += line.does == "open"
    assert depth == 0


def test_of_very_many_packed_pieces_the_first_are_unpacked() -> None:
    piece, empty = gzip.compress(b"one"), gzip.compress(b"")
    found = unpack((piece + empty) * (bodies.MOST_PIECES // 2) + piece)
    assert found.data == b"one" * (bodies.MOST_PIECES // 2)
    most = count_text(bodies.MOST_PIECES)
    assert found.notes == (f"Delayboard decompressed only the first {most} compressed pieces.",)
    exact = unpack(piece * bodies.MOST_PIECES)
    assert (exact.data, exact.notes) == (b"one" * bodies.MOST_PIECES, ())


def test_packed_pieces_longer_than_what_is_fed_at_once() -> None:
    reported = random.Random(1).randbytes(3 * bodies.FED_BYTES)
    packed = gzip.compress(reported) + gzip.compress(b"end")
    assert unpack(packed) == Unpacked(reported + b"end", "gzip")
    torn = unpack(packed[: 2 * bodies.FED_BYTES])
    assert reported.startswith(torn.data)
    assert torn.notes == ("The compressed data is incomplete.",)
    damaged = unpack(packed + b"rest")
    assert damaged.data == reported + b"end"
    assert damaged.notes == (
        f"Delayboard cannot decompress the data after the first {len(reported) + 3} bytes.",
    )
