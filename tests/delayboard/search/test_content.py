from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson
import pytest

from analytics.search import content
from analytics.search.content import read
from analytics.search.query import FieldValue
from tests.delayboard.builders import a_death, deaths_header
from topology.broker.properties.read import build_properties, read_properties
from topology.content import bodies


def fields(headers: dict[str, Any], body: Any = None) -> dict[str, tuple[str, float | None]]:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    found = read(build_properties(headers), data).fields
    return {value.name: (value.text, value.number) for value in found}


def test_values_have_names_texts_and_numbers() -> None:
    moment = datetime(2026, 11, 21, tzinfo=UTC)
    headers = {
        "Tenant": 42,
        "price": Decimal("1.50"),
        "flag": True,
        "none": None,
        "said": "7.5",
        "at": moment,
        "raw": b"\xff",
        "deep": {"A.B": {"c": 1}},
    }
    assert fields(headers, {"order": {"Amount": 10.0}, "list": [{"n": 1}]}) == {
        "header.tenant": ("42", 42.0),
        "header.price": ("1.50", 1.5),
        "header.flag": ("true", None),
        "header.none": ("null", None),
        "header.said": ("7.5", 7.5),
        "header.at": ("2026-11-21t00:00:00+00:00", None),
        "header.raw": ("\\xff", None),
        "header.deep.a.b.c": ("1", 1.0),
        "body.order.amount": ("10.0", 10.0),
        "body.list.n": ("1", 1.0),
    }


def test_every_item_of_a_list_is_a_value() -> None:
    found = read(build_properties({}), b'{"items":[{"n":1},{"n":2},{"n":2}],"t":["a","b"]}').fields
    assert [(one.name, one.text) for one in found] == [
        ("body.items.n", "1"),
        ("body.items.n", "2"),
        ("body.t", "a"),
        ("body.t", "b"),
    ]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"42",
        b'"text"',
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"a":' * 500 + b"1" + b"}" * 500,
        b'{"a":"' + b"x" * content.JSON_BYTES + b'"}',
        b'{"\\ud800":1}',
        b'{"' + b"n" * 300 + b'":1}',
        b"[1,2]",
    ],
)
def test_what_has_no_names_has_no_fields(body: bytes) -> None:
    assert fields({}, body) == {}


def test_json_with_numbers_that_json_has_not_is_searched() -> None:
    body = b'{"a": NaN, "b": [Infinity, -Infinity], "c": 2, "d": "\\ud800x"}'
    assert [
        (one.name, one.text, one.number) for one in read(build_properties({}), body).fields
    ] == [
        ("body.a", "nan", None),
        ("body.b", "infinity", None),
        ("body.b", "-infinity", None),
        ("body.c", "2", 2.0),
        ("body.d", "\\ud800x", None),
    ]
    assert fields({}, b'{"a": NaN,') == {}
    assert fields({}, b"[NaN, " * 100_000) == {}


@pytest.mark.parametrize(
    ("packed", "encoding"),
    [
        (gzip.compress, "gzip"),
        (gzip.compress, ""),
        (zlib.compress, "deflate"),
        (lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:]), "gzip"),
    ],
)
def test_what_is_packed_is_searched_as_what_was_packed(
    packed: Callable[[bytes], bytes], encoding: str
) -> None:
    properties = build_properties({}, content_encoding=encoding)
    found = read(properties, packed(b'{"order": {"card": "Needle"}}'))
    assert found.fields == (FieldValue("body.order.card", "needle", None),)
    assert "needle" in found.text
    assert "needle" in read(properties, packed(b"a Needle in plain text")).text


def test_what_is_packed_is_unpacked_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = build_properties({}, content_encoding="gzip")
    bomb = gzip.compress(b"needle " + b"x" * 50_000_000)
    unpacked: list[int] = []

    def unpack(*asked: Any) -> bodies.Unpacked:
        found = bodies.unpack(*asked)
        unpacked.append(len(found.data))
        return found

    monkeypatch.setattr(content, "unpack", unpack)
    assert "needle" in read(properties, bomb[: content.JSON_BYTES + 1]).text
    assert unpacked == [content.JSON_BYTES + 1]
    long = gzip.compress(b'{"a": "%s", "b": 1}' % (b"x" * content.JSON_BYTES))
    assert read(properties, long).fields == ()
    assert read(properties, b"no gzip at all").text.endswith("no gzip at all")
    assert read(properties, b"\x1f\x8b\x08 damaged").text == ""


def test_fields_are_bounded() -> None:
    many = {f"n{number}": number for number in range(500)}
    found = fields(many, many)
    assert len(found) == content.MOST_FIELDS
    assert sum(name.startswith("header.") for name in found) == content.MOST_HEADERS
    assert len(fields({"x": "y" * 5000})["header.x"][0]) == 255


def test_the_text_has_ids_headers_and_the_body_but_no_counts_of_deaths() -> None:
    headers = deaths_header(a_death(reason="delivery_limit")) | {"Way": {"Inner": "Value"}}
    properties = build_properties(headers, message_id="Id-1", correlation_id="Corr", type="Kind")
    text = read(properties, "Straße 7".encode()).text
    for part in ("id-1", "corr", "kind", "way", "inner", "value", "strasse 7", "delivery_limit"):
        assert part in text
    assert "original-expiration" not in text
    assert "count" not in text


def test_what_json_escapes_is_searched_as_it_is() -> None:
    assert "größe".casefold() in read(build_properties({}), b'{"a":"Gr\\u00f6\\u00dfe"}').text


def test_long_texts_are_cut_within_a_sign() -> None:
    body = "ä".encode() * 40_000
    text = read(build_properties({"h": "x" * 50_000}), body).text
    assert len(text) <= content.BODY_CHARACTERS + content.HEADER_CHARACTERS + 100
    assert "\ufffd" not in text


def test_bytes_are_no_text_and_no_signs_stop_a_database() -> None:
    found = read(build_properties({"a\x00b": "c\x00"}), b"\x00\xff")
    assert "\x00" not in found.text
    assert all("\x00" not in value.name + value.text for value in found.fields)
    assert read(read_properties(b"\xff"), b"").fields == ()


@pytest.mark.parametrize(
    ("headers", "body", "found"),
    [
        ({"task": "shop.ship", "id": "Task-7"}, b"[]", "task-7"),
        ({}, b'{"message_id": "d-7", "actor_name": "a", "queue_name": "q"}', "d-7"),
        ({"tenant": "7"}, b"{}", "amqp-id"),
    ],
)
def test_the_id_is_the_one_that_the_client_library_logs(
    headers: dict[str, Any], body: bytes, found: str
) -> None:
    content = read(build_properties(headers, message_id="AMQP-id"), body)
    assert content.message_id == found
    assert "amqp-id" in content.text
    assert found in content.text
