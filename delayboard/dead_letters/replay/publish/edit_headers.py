"""The headers of a message as a person edits them: names, types, texts; pure.

What is not changed keeps its bytes; what is changed is encoded again, behind the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from delayboard.dead_letters.replay.publish.header_values import (
    TYPES,
    HeaderRow,
    format_value,
    make_header_rows,
    name_type,
)
from topology.broker.properties.field_values import write_entry
from topology.broker.properties.read import edit_properties, read_properties
from topology.content.text import count_text
from topology.message import (
    DEATH_HEADERS,
    REPLAY_HEADER,
    REPLAYS_HEADER,
    Headers,
    Properties,
)

# A header frame is no longer than what a connection agrees on, 128 KiB by default.
MOST_BYTES = 120_000
_BROKER_S = DEATH_HEADERS | {"CC", "BCC"}
_OURS = {
    REPLAY_HEADER: "which replay sent the message",
    REPLAYS_HEADER: "how often the message was replayed",
}


class EditError(ValueError):
    """Nothing was changed. `problems` maps a header, or "body", to a sentence; "" is the whole."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__(" ".join(problems.values()))
        self.problems = dict(problems)


class Typed(NamedTuple):
    """A value as a text of one of TYPES; the type "" is the one that the header has."""

    type: str
    text: str


def read_headers(raw: bytes) -> tuple[HeaderRow, ...]:
    """The headers in their order. Raises EditError when they cannot be taken apart."""
    headers = _read(raw).headers
    return tuple(
        row._replace(lock=_explain_lock(raw, row.name, headers[row.name]))
        for row in make_header_rows(headers)
    )


def edit_headers(
    raw: bytes, set_headers: Mapping[str, Typed], drop_headers: Collection[str] = ()
) -> bytes:
    """The properties' bytes with these headers set and those dropped. Raises EditError."""
    properties = _read(raw)
    problems = {name: lock for name in drop_headers if (lock := explain_lock(name))}
    changed: dict[str, Any] = {}
    for name, typed in set_headers.items():
        try:
            if _is_changed(properties.headers, name, typed):
                changed[name] = _parse(raw, properties.headers, name, typed)
        except ValueError as error:
            problems[name] = str(error)
    if problems:
        raise EditError(problems)
    dropped = set(drop_headers) - set(set_headers)
    found = edit_properties(properties, set_headers=changed, drop_header=dropped.__contains__).raw
    if len(found) > max(MOST_BYTES, len(raw)):
        raise EditError(
            {"": f"All headers together can have {count_text(MOST_BYTES)} bytes at most."}
        )
    return found


def explain_lock(name: str) -> str:
    """Why nobody edits a header of this name; "" when it may be."""
    if name in _BROKER_S or name.startswith("x-opt-"):
        return "RabbitMQ sets this header, and every replay removes it."
    if name in _OURS:
        return f"Delayboard writes it at every replay: it records {_OURS[name]}."
    return ""


def _explain_lock(raw: bytes, name: str, value: Any) -> str:
    if why := explain_lock(name):
        return why
    if name.encode("utf-8", "replace") not in raw:
        return "Its name is not valid UTF-8."
    if isinstance(value, (Mapping, list)) and not _is_plain(value):
        return "This form cannot edit times, decimals or bytes in a table or list."
    return ""


def _is_plain(value: Any) -> bool:
    """Whether JSON can represent the value completely."""
    match value:
        case Mapping():
            return all(_is_plain(item) for item in value.values())
        case list():
            return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (str, bool, int, float))


def _is_changed(headers: Headers, name: str, typed: Typed) -> bool:
    if name not in headers:
        return True
    kind = name_type(headers[name])
    return typed.type not in ("", kind) or typed.text != format_value(headers[name])


def _parse(raw: bytes, headers: Headers, name: str, typed: Typed) -> Any:
    """The value to be set. Raises ValueError with a sentence."""
    if not name and name not in headers:
        raise ValueError("A header needs a name.")
    lock = _explain_lock(raw, name, headers[name]) if name in headers else explain_lock(name)
    if lock:
        raise ValueError(lock)
    kind = typed.type or (name_type(headers[name]) if name in headers else "")
    if kind not in TYPES:
        raise ValueError(f"Its type is one of {', '.join(TYPES)}.")
    value = TYPES[kind](typed.text)
    write_entry(name, value)
    return value


def _read(raw: bytes) -> Properties:
    """Raises EditError."""
    properties = read_properties(raw)
    if properties.problems:
        sentence = (
            "Delayboard cannot read the properties of this message, so nothing can be edited: "
            f"{' '.join(properties.problems)}"
        )
        raise EditError({"": sentence})
    return properties
