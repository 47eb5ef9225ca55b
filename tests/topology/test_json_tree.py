from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.content.json_tree import Tree, read_json, write_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(values, st.booleans())
def test_a_document_is_written_as_it_was_read(value: Any, ascii: bool) -> None:
    body = json.dumps([value], ensure_ascii=ascii).encode("utf-8", "surrogatepass")
    tree = read_json(body)
    if tree is not None:
        assert repr(json.loads(write_json(tree))) == repr([value])
    else:
        assert not ascii


@pytest.mark.parametrize(
    "text",
    [
        '{"n": 1.10}',
        '{"n": 1e5, "n": -0}',
        "[12345678901234567890.5, NaN, -Infinity]",
        '[true, false, null, "", {}, []]',
        '["\\ud800"]',
    ],
)
def test_numbers_names_and_order_stay_as_they_are(text: str) -> None:
    tree = read_json(text.encode())
    assert tree is not None
    assert write_json(tree) == text


@pytest.mark.parametrize("data", [b"", b"1", b'"text"', b"null", b"\xff[]", b"[1", b"[" * 100_000])
def test_what_is_no_object_or_list_is_no_document(data: bytes) -> None:
    assert read_json(data) is None


def test_a_byte_order_mark_is_left_out() -> None:
    assert read_json(b'\xef\xbb\xbf {"a": "x"}') == Tree(
        "object", parts=(Tree("text", "x", name="a"),)
    )
