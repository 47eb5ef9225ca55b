"""A message as if it had never failed: the client's own counters gone, an envelope opened."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from topology.clients.conventions import Convention
from topology.clients.describe import find_library
from topology.clients.forms import FORMS
from topology.clients.parts import ANY, MOST_JSON_BYTES, Parts, Pointer, read_text
from topology.content.json_tree import Tree, read_json, write_json


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


def explain_return(headers: Mapping[str, Any], own: Sequence[Convention] = ()) -> str:
    """Why its library fails a message before the application sees it; "" where it does not."""
    parts = Parts(headers, b"", "")
    library = find_library(parts, own)
    if library is None or all(parts.get(one) is None for one in library.restart.returns):
        return ""
    return (
        f"{library.name} rejects this message at once, because a header of its last failure says "
        "so. Reset its retry counters."
    )


def restart(convention: Convention, headers: Mapping[str, Any], body: bytes) -> Restarted:
    """The message with its counters reset.

    Where a counter stands in a JSON body, all other values of it stay as they are written. A body
    that is too long for `Parts` to read stays as it is.
    """
    edits = list[Edit]()
    marks = (*convention.restart.remove, *convention.restart.returns)
    pointers = (*marks, *convention.restart.zero)
    in_body = any(pointer[0] == "body" for pointer in pointers)
    tree = read_json(body) if in_body and len(body) <= MOST_JSON_BYTES else None
    for pointer in pointers:
        (root, *steps), is_removed = pointer, pointer in marks
        before: Any = None
        if root == "headers":
            headers, before = _edit(headers, tuple(steps), is_removed=is_removed)
        elif tree is not None:
            tree, before = _edit_tree(tree, tuple(steps), is_removed=is_removed)
        if before is not None:
            edits.append(Edit("/" + "/".join(pointer), before, is_removed))
    is_body_edited = any(edit.place.startswith("/body/") for edit in edits)
    if tree is not None and is_body_edited:
        body = write_json(tree).encode()
    return Restarted(headers, body, tuple(edits))


def _edit(value: Any, steps: Pointer, *, is_removed: bool) -> tuple[Any, Any]:
    """A copy of the table with the value at these steps changed, and what stood there.

    None stands for no change: a value that is no number above 0 is no counter.
    """
    if not isinstance(value, Mapping) or not steps:
        return value, None
    step = next(iter(value), "") if steps[0] == ANY else steps[0]
    if step not in value:
        return value, None
    if len(steps) > 1:
        inner, before = _edit(value[step], steps[1:], is_removed=is_removed)
        return (value if before is None else {**value, step: inner}), before
    found = value[step]
    if is_removed:
        return {name: one for name, one in value.items() if name != step}, found
    if not FORMS["number"](found):
        return value, None
    return {**value, step: "0" if isinstance(found, str) else 0}, found


def _edit_tree(tree: Tree, steps: Pointer, *, is_removed: bool) -> tuple[Tree, Any]:
    """The same in a JSON document; of members with one name the last counts, as for its readers."""
    places = [place for place, part in enumerate(tree.parts) if part.name == steps[0]]
    if tree.kind != "object" or not places:
        return tree, None
    parts, found = list(tree.parts), tree.parts[places[-1]]
    before: Any = found.text
    if len(steps) > 1:
        parts[places[-1]], before = _edit_tree(found, steps[1:], is_removed=is_removed)
        if before is None:
            return tree, None
    elif is_removed:
        parts = [part for part in tree.parts if part.name != steps[0]]
    elif not FORMS["number"](found.text):
        return tree, None
    else:
        parts[places[-1]] = replace(found, text="0")
    return replace(tree, parts=tuple(parts)), before


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
