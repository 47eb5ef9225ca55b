"""A message as if it had never failed: the client's own counters gone, an envelope opened."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topology.clients.conventions import Convention
from topology.clients.describe import find_library
from topology.clients.parts import ANY, Parts, Pointer, read_json, read_text


@dataclass(frozen=True)
class Edit:
    """A value of a message that is removed, or set to 0; `place` is a JSON Pointer."""

    place: str
    before: Any
    is_removed: bool


@dataclass(frozen=True)
class Restarted:
    """Headers and body after the edits; the very same objects where nothing changes."""

    headers: Mapping[str, Any]
    body: bytes
    edits: tuple[Edit, ...]


def explain_return(headers: Mapping[str, Any]) -> str:
    """Why its library fails a message before the application sees it; "" where it does not."""
    parts = Parts(headers, b"", "")
    library = find_library(parts)
    if library is None or all(parts.get(one) is None for one in library.restart.returns):
        return ""
    return (
        f"{library.name} rejects this message at once, because a header of its last failure says "
        "so. Reset its retry counters."
    )


def restart(convention: Convention, headers: Mapping[str, Any], body: bytes) -> Restarted:
    """The message with its counters reset. A JSON body is written again where one stands in it."""
    roots: dict[str, Any] = {"headers": headers, "body": read_json(body)}
    edits = []
    for pointer, is_removed in (
        *((one, True) for one in (*convention.restart.remove, *convention.restart.returns)),
        *((one, False) for one in convention.restart.zero),
    ):
        root, *steps = pointer
        changed, before = _edit(roots.get(root), tuple(steps), is_removed=is_removed)
        if before is not None and (is_removed or before != 0):
            roots[root] = changed
            edits.append(Edit("/" + "/".join(pointer), before, is_removed))
    if any(edit.place.startswith("/body/") for edit in edits):
        text = json.dumps(roots["body"], ensure_ascii=False, separators=(",", ":"))
        # Half a surrogate pair, which JSON can escape and UTF-8 cannot hold, is escaped again.
        body = text.encode(errors="backslashreplace")
    return Restarted(roots["headers"], body, tuple(edits))


def _edit(value: Any, steps: Pointer, *, is_removed: bool) -> tuple[Any, Any]:
    """A copy of the table with the value at these steps changed, and what stood there."""
    if not isinstance(value, Mapping) or not steps:
        return value, None
    step = next(iter(value), "") if steps[0] == ANY else steps[0]
    if step not in value:
        return value, None
    if len(steps) > 1:
        inner, before = _edit(value[step], steps[1:], is_removed=is_removed)
        return {**value, step: inner}, before
    rest = {name: one for name, one in value.items() if name != step}
    return (rest if is_removed else {**value, step: 0}), value[step]


def open_envelope(convention: Convention, body: bytes) -> tuple[bytes, Mapping[str, Any]] | None:
    """The body of the message inside and its properties as the library names them.

    None where there is no envelope, or none that can be read.
    """
    envelope = convention.envelope
    if envelope is None:
        return None
    parts = Parts({}, body, "")
    inside = parts.get(envelope.body)
    if not isinstance(inside, str):
        return None
    properties = parts.get(envelope.properties) if envelope.properties else None
    if envelope.encoding == "base64":
        try:
            opened = base64.b64decode("".join(inside.split()), validate=True)
        except ValueError:
            return None
    else:
        opened = read_text(inside).encode()
    return opened, properties if isinstance(properties, Mapping) else {}
