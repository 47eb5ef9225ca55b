from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.content.text import is_encodable, make_encodable

# All code points, halves of surrogate pairs and NUL included.
any_text = st.text(st.characters())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("größe 😀", "größe 😀"),
        ("cut \ud83d", "cut \\ud83d"),
        ("\udc00\x00", "\\udc00\\x00"),
        (b"gr\xc3\xb6\xff\x00", "grö\\xff\\x00"),
        (b"\xed\xa0\xbd", "\\xed\\xa0\\xbd"),
        (None, "None"),
        (1.5, "1.5"),
    ],
)
def test_what_cannot_be_held_is_escaped(value: Any, text: str) -> None:
    assert make_encodable(value) == text


@given(st.one_of(any_text, st.binary()))
def test_everything_becomes_text_that_stays_the_same(value: str | bytes) -> None:
    text = make_encodable(value)
    assert text.encode().decode() == text
    assert "\x00" not in text
    assert make_encodable(text) == text
    assert is_encodable(text)


@given(any_text)
def test_what_can_be_held_is_not_changed(text: str) -> None:
    is_sound = "\x00" not in text and not any("\ud800" <= sign <= "\udfff" for sign in text)
    assert is_encodable(text) == is_sound
