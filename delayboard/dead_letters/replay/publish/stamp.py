"""What is published of very many messages: stripped, under a replay id, and not decoded."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from delayboard.dead_letters.replay.check.route_checker import count_replays
from topology.broker.properties.field_values import FieldError, read_table, write_entry
from topology.broker.properties.raw import Stripped, strip_raw
from topology.message import REPLAY_HEADER, REPLAYS_HEADER, Properties

_REPLAYS = REPLAYS_HEADER.encode()
_OURS = frozenset({REPLAY_HEADER.encode(), _REPLAYS})
_NAMED = write_entry(REPLAY_HEADER, "")[:-4]
_entry = lru_cache(maxsize=64)(write_entry)


def strip_properties(raw: bytes, headers: Mapping[str, Any] | None = None) -> Stripped:
    """The properties without what dying added, ours, and these headers. Raises FieldError."""
    return strip_raw(raw, _OURS.union([name.encode() for name in headers]) if headers else _OURS)


def count_stated_replays(stripped: Stripped) -> int:
    """How often the message was replayed before, according to its header."""
    entry = stripped.replaced.get(_REPLAYS)
    if entry is None:
        return 0
    try:
        return count_replays(read_table(entry))
    except FieldError:
        return 0


def stamp_properties(
    stripped: Stripped, name: str, replays: int, headers: Mapping[str, Any] | None = None
) -> Properties:
    """To publish with: these headers, this replay id, replayed so often. Only `raw` is filled."""
    # As `write_entry` writes a text, of which nearly all is the same each time.
    encoded = name.encode()
    entries = _NAMED + len(encoded).to_bytes(4) + encoded + _entry(REPLAYS_HEADER, replays)
    if headers:
        entries = b"".join([write_entry(*pair) for pair in headers.items()]) + entries
    return Properties(raw=stripped.with_entries(entries))
