from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.database.slugs import RESERVED, new_slug


@given(st.text(), st.integers(0, 3))
def test_a_slug_is_free_short_and_plain_whatever_the_name(name: str, collisions: int) -> None:
    asked: list[str] = []

    def is_taken(slug: str) -> bool:
        asked.append(slug)
        return len(asked) <= collisions

    slug = new_slug(name, is_taken, longest=20)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug)
    assert len(slug) <= 20
    assert slug == asked[-1]
    assert slug not in RESERVED


@pytest.mark.parametrize(
    ("name", "slug"),
    [("Orders", "orders"), ("Größe & Co.", "groe-co"), ("a  b--c", "a-b-c"), ("Crème", "creme")],
)
def test_a_readable_name_gives_a_readable_slug(name: str, slug: str) -> None:
    assert new_slug(name, lambda slug: False, longest=60) == slug


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_word_that_an_address_uses_gets_a_tail(name: str) -> None:
    assert new_slug(name, lambda slug: False, longest=60).startswith(f"{name}-")
