from __future__ import annotations

import json

import pytest

from delayboard.forms.content import BodyError, format_json, read_body


@pytest.mark.parametrize(
    ("kind", "text", "body"),
    [
        ("text", "a\r\nb", b"a\nb"),
        ("", "{", b"{"),
        ("json", '{"a": 1.50}', b'{"a": 1.50}'),
        ("base64", "AP8=\n", b"\x00\xff"),
        ("base64", "", b""),
    ],
)
def test_a_body_is_what_was_typed(kind: str, text: str, body: bytes) -> None:
    assert read_body(text, kind) == body


@pytest.mark.parametrize(
    ("kind", "text", "problem"),
    [
        ("json", "{", "The body is not JSON"),
        ("json", "", "The body is not JSON"),
        ("json", "[" * 100_000, "nested too deep"),
        ("base64", "AP8", "The body is not base64"),
        ("base64", "ä", "The body is not base64"),
        ("text", "x" * (8 * 1024 * 1024 + 1), "larger than 8 MB"),
    ],
)
def test_a_wrong_body_is_a_sentence(kind: str, text: str, problem: str) -> None:
    with pytest.raises(BodyError, match=problem):
        read_body(text, kind)


def test_formatted_json_keeps_its_digits_and_its_repeated_names() -> None:
    text = '{"a": 1.50, "a": 12345678901234567890.10, "b": [], "c": [1, {"d": "\\u00e4"}]}'
    formatted = format_json(text)
    assert json.loads(formatted) == json.loads(text)
    assert formatted.splitlines()[:4] == [
        "{",
        '  "a": 1.50,',
        '  "a": 12345678901234567890.10,',
        '  "b": [],',
    ]
    assert format_json("17") == "17"
