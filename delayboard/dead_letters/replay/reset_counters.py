"""A message as if its client library had never failed it: pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import edit_properties, read_properties
from topology.clients.conventions import Convention
from topology.clients.describe import find_library
from topology.clients.parts import Parts
from topology.clients.restart import Edit, restart
from topology.message import Properties


class Reset(NamedTuple):
    """The message with these edits; `library` is whose counters they are."""

    library: str
    properties: Properties
    body: bytes
    edits: tuple[Edit, ...]


def reset_counters(
    properties: Properties, body: bytes, own: Sequence[Convention] = ()
) -> Reset | None:
    """None where nothing counts, or where the properties cannot be edited.

    Headers that do not change keep every byte.
    """
    library = find_library(Parts(properties.headers, body, ""), own)
    if library is None or properties.problems:
        return None
    done = restart(library, properties.headers, body)
    if not done.edits:
        return None
    before = properties.headers
    changed = {name: value for name, value in done.headers.items() if value is not before.get(name)}
    dropped = before.keys() - done.headers.keys()
    try:
        raw = edit_properties(properties, set_headers=changed, drop_header=dropped.__contains__).raw
    except FieldError:
        return None
    return Reset(library.name, read_properties(raw), done.body, done.edits)
