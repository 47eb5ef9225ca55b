"""Conventions that operators declare: what is written is read again."""

from __future__ import annotations

import json
from typing import Any

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
    check_own,
    find_own,
    write_convention,
)
from topology.clients.describe import describe
from topology.clients.parts import ROOTS
from topology.clients.restart import explain_return, open_envelope, restart

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


HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(OWN, st.data())
def test_whatever_it_meets_it_raises_nothing(own: Convention, data: st.DataObject) -> None:
    """Messages with values of all types where the convention looks for its own."""
    steps = [pointer[1:] for row in own.known_by for pointer in row]
    steps += [fact.pointer[1:] for facts in own.facts.values() for fact in facts]
    headers: dict[str, Any] = {}
    for first, second in steps:
        value = data.draw(HOSTILE)
        headers[first] = data.draw(st.sampled_from([value, {second: value}]))
    text = json.dumps(headers, default=repr).encode()
    read = describe(headers, text, data.draw(HOSTILE), [own])
    for name in FACTS if read else ():
        if isinstance(value := getattr(read, name), str):
            value.encode()
    explain_return(headers, [own])
    again = restart(own, headers, text)
    assert (again.body is text) or any(edit.place.startswith("/body") for edit in again.edits)
    open_envelope(own, text)


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
