"""Sentences with names from right to left, or with characters that nobody sees."""

from __future__ import annotations

import pytest

from topology.content.text import isolate_names

FSI, PDI = "\u2068", "\u2069"
HEBREW = "\u05d0\u05d1"


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("The message arrives in orders after 5s.", "The message arrives in orders after 5s."),
        ("“日本” has 3.", "“日本” has 3."),
        (f"“{HEBREW} 1-2” has 3.", f"“{FSI}{HEBREW} 1-2{PDI}” has 3."),
        (
            f"The message arrives in a-{HEBREW}-7.",
            f"The message arrives in {FSI}a-{HEBREW}-7{PDI}.",
        ),
        (f"in {HEBREW}: 3 (of {HEBREW})", f"in {FSI}{HEBREW}{PDI}: 3 (of {FSI}{HEBREW}{PDI})"),
        ("“a\u202eb” has 3.", "“a\ufffdb” has 3."),
        (f"“{HEBREW}{PDI}” has 3.", f"“{FSI}{HEBREW}\ufffd{PDI}” has 3."),
        ("“a\x00b”", "“a␀b”"),
        (f"“”{HEBREW}”.", f"“”{FSI}{HEBREW}{PDI}”."),
        ("", ""),
    ],
)
def test_a_name_from_right_to_left_is_set_apart_and_what_nobody_sees_is_shown(
    sentence: str, shown: str
) -> None:
    assert isolate_names(sentence) == shown
