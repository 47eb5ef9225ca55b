"""Conventions that operators declare: what is written is read again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topology.clients.conventions import (
    FACTS,
    Convention,
    ConventionError,
    Envelope,
    Fact,
    Restart,
    built_in,
)
from topology.clients.own import check_own, find_own, write_convention
from topology.clients.parts import ROOTS

# A bar begins a form, and spaces around a pointer do not count.
STEPS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="|"), max_size=8).map(
    str.strip
)
POINTERS = st.tuples(st.sampled_from(ROOTS), STEPS, STEPS)
SOME = st.lists(POINTERS, max_size=2).map(tuple)
NUMBERS = {"attempt": "number", "attempts": "failures", "failed_at": "time"}
OWN = st.builds(
    Convention,
    name=st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=20),
    source=STEPS,
    known_by=st.lists(st.lists(POINTERS, min_size=1, max_size=2).map(tuple), min_size=1).map(
        lambda rows: tuple(rows[:3])
    ),
    facts=st.dictionaries(st.sampled_from(FACTS), POINTERS, min_size=1, max_size=4).map(
        lambda found: {
            name: (Fact(pointer, NUMBERS.get(name, "trace_type")),)
            for name, pointer in found.items()
        }
    ),
    restart=st.builds(Restart, SOME, SOME, SOME),
    envelope=st.none() | st.builds(Envelope, POINTERS, st.just("base64"), st.none() | POINTERS),
    note=STEPS,
)


@given(OWN)
def test_what_is_written_is_read_again(own: Convention) -> None:
    assert check_own(write_convention(own)) == own


@pytest.mark.parametrize("one", built_in()[:-1], ids=lambda one: one.name)
def test_each_built_in_one_can_be_exported_and_imported(one: Convention) -> None:
    if not one.known_by or not (one.facts or one.restart != Restart() or one.envelope):
        with pytest.raises(ConventionError):
            check_own(write_convention(one))
    else:
        assert check_own(write_convention(one)) == one


@given(st.text())
def test_any_other_text_is_none(text: str) -> None:
    assert find_own(text) is None
