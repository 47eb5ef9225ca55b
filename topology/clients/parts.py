"""The parts of a message by pointer: whatever is there, nothing raises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, TypeAlias

from topology.content.text import make_encodable

ROOTS = ("headers", "body", "routing_key")
ANY, LAST = "*", "last"
# Largest body that is read: no envelope and no task of the known libraries is larger.
MOST_JSON_BYTES = 1_000_000
Pointer: TypeAlias = tuple[str, ...]


def parse_pointer(text: str) -> Pointer | None:
    """The steps of a JSON Pointer (RFC 6901) into a message; None for anything else."""
    steps = text.split("/")
    if len(steps) < 2 or steps[0] or steps[1] not in ROOTS or len(text) > 1000:
        return None
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps[1:])


class Parts:
    """A message to read from; its body is parsed when the first pointer asks for it."""

    def __init__(self, headers: Any, body: Any, routing_key: Any) -> None:
        self._headers = headers if isinstance(headers, Mapping) else {}
        self._body = body
        self._routing_key = routing_key

    def has_header_of(self, names: frozenset[str]) -> bool:
        """Whether it has any of these headers."""
        return not names.isdisjoint(self._headers)

    def may_have(self, pointer: Pointer) -> bool:
        """False where the value is not there, found fast: most messages are of no known library.

        A key of a body counts as JSON writers write it, without escapes.
        """
        if len(pointer) == 1 or pointer[1] == ANY:
            return True
        if pointer[0] == "headers":
            return pointer[1] in self._headers
        return not isinstance(self._body, bytes) or pointer[1].encode() in self._body

    def get(self, pointer: Pointer) -> Any:
        """The value there, None if there is none."""
        if not self.may_have(pointer):
            return None
        root, *steps = pointer
        if root == "headers":
            value: Any = self._headers
        else:
            value = self._routing_key if root == "routing_key" else self._parsed_body
        for step in steps:
            value = _take_step(read_json(value), step)
            if value is None:
                return None
        return value

    @cached_property
    def _parsed_body(self) -> Any:
        return read_json(self._body)


def _take_step(value: Any, step: str) -> Any:
    if isinstance(value, Mapping):
        if step == ANY:
            return next(iter(value.values()), None)
        return value.get(step)
    if isinstance(value, list) and value:
        if step in (LAST, ANY):
            return value[-1 if step == LAST else 0]
        if step.isascii() and step.isdecimal() and len(step) < 6 and int(step) < len(value):
            return value[int(step)]
    return None


def read_json(value: Any) -> Any:
    """A text or bytes that are a JSON table or list as such; anything else as it is."""
    if isinstance(value, (bytes, bytearray)):
        is_json = value.lstrip()[:1] in (b"{", b"[")
    else:
        is_json = isinstance(value, str) and value.lstrip()[:1] in ("{", "[")
    if not is_json or len(value) > MOST_JSON_BYTES:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def read_text(value: Any) -> str:
    """A text, or the bytes of one; "" for anything else."""
    if isinstance(value, (bytes, bytearray)):
        return make_encodable(bytes(value))
    return make_encodable(value) if isinstance(value, str) else ""
