"""Telling which publish it was that the broker gave back."""

from __future__ import annotations

from collections.abc import Callable

from topology.broker.properties.field_values import write_entry
from topology.broker.properties.read import read_properties
from topology.message import REPLAY_HEADER, Headers, Publish


def match_returned(raw: bytes, body: bytes) -> Callable[[Publish], bool]:
    """Whether a publish is the one that came back with these properties and this body.

    Without a name of its own it is one that is equal to it in all that routing sees: each of
    them comes back. Names are looked for in the bytes: what is published may be undecoded.
    """
    headers = _headers(raw)
    name = headers.get(REPLAY_HEADER)
    named = write_entry(REPLAY_HEADER, name) if isinstance(name, str) else b""

    def is_same(publish: Publish) -> bool:
        if publish.body != body:
            return False
        stated = publish.properties.raw
        return named in stated if named else stated == raw or _headers(stated) == headers

    return is_same


def _headers(raw: bytes) -> Headers:
    """The broker takes BCC out before it gives a message back."""
    return {name: value for name, value in read_properties(raw).headers.items() if name != "BCC"}
