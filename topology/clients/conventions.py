"""How client libraries write failures into messages: one TOML file for each library, one reader.

A file states where each fact is, by a JSON Pointer (RFC 6901) that begins with `/headers`, `/body`
or `/routing_key`. A step `*` takes the first entry of a table, `last` the last one of a list, and a
text that is JSON is read like a table. `| form` behind it names one of `forms.FORMS`. Of several
pointers the first with a value counts. A convention that an operator declares is such a text too.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from topology.clients.forms import FORMS
from topology.clients.parts import ROOTS, Pointer, parse_pointer

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
