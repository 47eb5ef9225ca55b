"""How client libraries write failures into messages: one TOML file for each library, one reader.

A file states where each fact is, by a JSON Pointer (RFC 6901) that begins with `/headers`, `/body`
or `/routing_key`. A step `*` takes the first entry of a table, `last` the last one of a list, and a
text that is JSON is read like a table. `| form` behind it names one of `forms.FORMS`. Of several
pointers the first with a value counts. A convention that an operator declares is such a text too.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from topology.clients.forms import FORMS
from topology.clients.parts import ROOTS, Pointer, parse_pointer
from topology.content.text import is_encodable

# Facts that a convention can state, in the order of `Description`.
FACTS = (
    *("exchange", "routing_key", "queue", "exception_type", "exception_message", "stack_trace"),
    *("machine", "failed_at", "attempt", "attempts", "message_id", "correlation_id"),
    *("message_type", "publisher"),
)
# Libraries in the order of the check: messages of one can look like those of a later one.
LIBRARIES = (
    *("nservicebus", "masstransit", "rebus", "wolverine", "spring", "rascal", "celery", "taskiq"),
    *("easynetq", "sneakers", "dramatiq", "laravel", "symfony", "watermill", "golevelup", "kombu"),
    *("faststream", "hutch", "broadway", "common"),
)
_TABLES = frozenset({"name", "source", "known_by", "facts", "restart", "envelope", "note"})
# Facts that are no texts, each with its possible forms; the first is the default.
_FORMS_OF = {
    "attempt": ("number", "failures"),
    "attempts": ("number", "failures"),
    "failed_at": ("time",),
}
_NO_TEXTS = frozenset(form for forms in _FORMS_OF.values() for form in forms)
TEXT_FORMS = tuple(form for form in FORMS if form not in _NO_TEXTS)
_SHOWN_CHARACTERS = 60
# Limits of a convention, since each message is tried against all of it.
MOST_CHARACTERS, MOST_POINTERS, LONGEST_NAME = 10_000, 100, 60


class ConventionError(ValueError):
    """A text that describes no convention; one sentence."""


@dataclass(frozen=True)
class Fact:
    """Where a value is, and the form in which it stands there."""

    pointer: Pointer
    form: str


@dataclass(frozen=True)
class Restart:
    """What a message must lose or get, so that its library begins to count again.

    `returns` are marks by which the library fails it at once, and are removed too.
    """

    remove: tuple[Pointer, ...] = ()
    zero: tuple[Pointer, ...] = ()
    returns: tuple[Pointer, ...] = ()


@dataclass(frozen=True)
class Envelope:
    """Where the message itself stands in the body, as `text` or `base64`; its properties."""

    body: Pointer
    encoding: str
    properties: Pointer | None = None


@dataclass(frozen=True)
class Convention:
    """One library. A message is its own if it has all pointers of one row of `known_by`."""

    name: str
    source: str
    known_by: tuple[tuple[Pointer, ...], ...]
    facts: Mapping[str, tuple[Fact, ...]] = field(default_factory=dict)
    restart: Restart = field(default_factory=Restart)
    envelope: Envelope | None = None
    note: str = ""


@cache
def built_in() -> tuple[Convention, ...]:
    """The libraries that Delayboard knows, in the order in which they are tried."""
    folder = Path(__file__).parent
    return tuple(
        parse_convention((folder / f"{name}.toml").read_text(encoding="utf-8"))
        for name in LIBRARIES
    )


def parse_convention(text: str) -> Convention:
    """A convention from its TOML. Raises ConventionError."""
    try:
        read = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConventionError(f"This is not TOML: {error}.") from error
    if unknown := sorted(read.keys() - _TABLES):
        raise ConventionError(f"“{_shorten(unknown[0])}” is not a part of a convention.")
    name = read.get("name")
    if not isinstance(name, str) or not name.strip():
        raise ConventionError("Enter the name of the client library as `name`.")
    facts = _read_table(read, "facts")
    if unknown := sorted(facts.keys() - set(FACTS)):
        facts_are = f"Facts are: {', '.join(FACTS)}."
        raise ConventionError(f"“{_shorten(unknown[0])}” is not a fact. {facts_are}")
    restart = _read_table(read, "restart")
    known_by = read.get("known_by", [])
    if not isinstance(known_by, list):
        raise ConventionError("`known_by` is a list of pointers.")
    return Convention(
        name=name.strip(),
        source=str(read.get("source", "")),
        known_by=tuple(_read_pointers(one) for one in known_by),
        facts={
            fact: tuple(read_fact(fact, one) for one in _as_list(facts[fact])) for fact in facts
        },
        restart=Restart(
            *(_read_pointers(restart.get(part, [])) for part in ("remove", "zero", "returns"))
        ),
        envelope=_read_envelope(read),
        note=str(read.get("note", "")),
    )


def _read_table(read: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = read.get(name, {})
    if not isinstance(found, Mapping):
        raise ConventionError(f"`{name}` is a table.")
    return found


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [value]


def _read_pointers(value: Any) -> tuple[Pointer, ...]:
    return tuple(read_pointer(one) for one in _as_list(value))


def read_pointer(text: Any) -> Pointer:
    """The steps of a JSON Pointer into a message. Raises ConventionError."""
    pointer = parse_pointer(text) if isinstance(text, str) else None
    if pointer is None:
        roots = ", ".join(f"`/{root}`" for root in ROOTS)
        raise ConventionError(f"“{_shorten(text)}” is not a pointer. Pointers begin with {roots}.")
    return pointer


def read_fact(fact: str, text: Any) -> Fact:
    """Where this fact is, by a pointer with or without `| form`. Raises ConventionError."""
    place, _, form = text.partition("|") if isinstance(text, str) else (text, "", "")
    known = _FORMS_OF.get(fact, TEXT_FORMS)
    form = form.strip() or (known[0] if fact in _FORMS_OF else "text")
    if form not in known:
        forms_are = f"Forms of {fact} are: {', '.join(known)}."
        raise ConventionError(f"“{_shorten(form)}” is not a form. {forms_are}")
    return Fact(read_pointer(place.strip() if isinstance(place, str) else place), form)


def _shorten(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def _read_envelope(read: Mapping[str, Any]) -> Envelope | None:
    table = _read_table(read, "envelope")
    if not table:
        return None
    encoding = table.get("encoding", "text")
    if encoding not in ("text", "base64"):
        raise ConventionError("The encoding of an envelope is `text` or `base64`.")
    properties = table.get("properties")
    return Envelope(
        read_pointer(table.get("body")),
        encoding,
        None if properties is None else read_pointer(properties),
    )


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
