"""Conventions that operators declare for libraries that Delayboard does not know: pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from topology.clients.conventions import (
    FACTS,
    Convention,
    ConventionError,
    Fact,
    Restart,
    parse_convention,
)
from topology.clients.parts import Pointer
from topology.content.text import is_encodable

# Each message is tried against all of it.
MOST_CHARACTERS, MOST_POINTERS, LONGEST_NAME = 10_000, 100, 60


def check_own(text: str) -> Convention:
    """The convention of an operator's TOML. Raises ConventionError."""
    if len(text) > MOST_CHARACTERS:
        raise ConventionError(f"A convention has at most {MOST_CHARACTERS:,} characters.")
    own = parse_convention(text)
    if len(own.name) > LONGEST_NAME or not own.name.isprintable() or not is_encodable(own.name):
        raise ConventionError(f"A name has at most {LONGEST_NAME} printable characters.")
    if not own.known_by or not all(own.known_by):
        raise ConventionError("Enter a header by which to recognize the messages.")
    if not own.facts and own.restart == Restart() and own.envelope is None:
        raise ConventionError("Enter at least one fact, such as the header with the origin queue.")
    if sum(1 for _ in _list_pointers(own)) > MOST_POINTERS:
        raise ConventionError(f"A convention has at most {MOST_POINTERS} pointers.")
    return own


@lru_cache(maxsize=256)
def find_own(text: str) -> Convention | None:
    """The convention of a stored text; None where this version of Delayboard cannot read it."""
    try:
        return check_own(text)
    except ConventionError:
        return None


def _list_pointers(own: Convention) -> Iterator[Pointer]:
    for row in own.known_by:
        yield from row
    for facts in own.facts.values():
        yield from (fact.pointer for fact in facts)
    yield from (*own.restart.remove, *own.restart.zero, *own.restart.returns)


def write_convention(own: Convention) -> str:
    """Write a convention as TOML, in the form of the built-in ones."""
    lines = [f"name = {_quote(own.name)}"]
    if own.source:
        lines.append(f"source = {_quote(own.source)}")
    rows = (_write_list(map(write_pointer, row)) for row in own.known_by)
    lines.append(f"known_by = [{', '.join(rows)}]")
    if own.note:
        lines.append(f"note = {_quote(own.note)}")
    facts = {name: [write_fact(fact) for fact in own.facts.get(name, ())] for name in FACTS}
    restart = {
        name: [*map(write_pointer, getattr(own.restart, name))]
        for name in ("remove", "zero", "returns")
    }
    lines += _write_table("facts", facts) + _write_table("restart", restart)
    if own.envelope is not None:
        lines += ["", "[envelope]", f"body = {_quote(write_pointer(own.envelope.body))}"]
        lines.append(f"encoding = {_quote(own.envelope.encoding)}")
        if own.envelope.properties is not None:
            lines.append(f"properties = {_quote(write_pointer(own.envelope.properties))}")
    return "\n".join(lines) + "\n"


def _write_table(name: str, values: dict[str, list[str]]) -> list[str]:
    lines = [f"{key} = {_write_list(texts)}" for key, texts in values.items() if texts]
    return ["", f"[{name}]", *lines] if lines else []


def _write_list(texts: Iterable[str]) -> str:
    return f"[{', '.join(map(_quote, texts))}]"


def write_fact(fact: Fact) -> str:
    """Write the pointer and the form of a fact, as a convention states them."""
    return write_pointer(fact.pointer) + ("" if fact.form == "text" else f" | {fact.form}")


def write_pointer(pointer: Pointer) -> str:
    """The JSON Pointer (RFC 6901) of these steps."""
    return "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in pointer)


def _quote(text: Any) -> str:
    """A basic string of TOML: one of JSON, in which TOML also escapes DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
