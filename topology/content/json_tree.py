"""JSON as it was written: every number in its own digits, every pair of an object; pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["object", "list", "text", "number", "word"]
BRACKETS = {"object": "{}", "list": "[]"}


@dataclass(frozen=True)
class Tree:
    """One value. `text` is a string, or a number or word (true, false, null) as written.

    `parts` are the members of an object or list; those of an object have a `name`, which may
    occur twice.
    """

    kind: Kind
    text: str = ""
    parts: tuple[Tree, ...] = ()
    name: str | None = None


class _Number(str):
    """The digits of a number."""


def read_json(data: bytes) -> Tree | None:
    """The object or list that these bytes are in UTF-8; None for anything else.

    A lone number or text is no document here: any text body of digits would be one.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    if text.lstrip(" \t\r\n")[:1] not in ("{", "["):
        return None
    try:
        read: dict[str, Any] = {"parse_float": _Number, "parse_int": _Number}
        read |= {"parse_constant": _Number, "object_pairs_hook": _Pairs}
        return _tree(json.loads(text, **read))
    except (ValueError, RecursionError):
        return None


def write_json(tree: Tree) -> str:
    """The same document without spaces. Raises RecursionError where it is nested too deep."""
    if tree.kind == "object":
        pairs = [f"{_quote(part.name or '')}: {write_json(part)}" for part in tree.parts]
        return "{" + ", ".join(pairs) + "}"
    if tree.kind == "list":
        return "[" + ", ".join([write_json(part) for part in tree.parts]) + "]"
    return _quote(tree.text) if tree.kind == "text" else tree.text


class _Pairs(list[tuple[str, Any]]):
    """The pairs of an object, in their order."""


def _tree(value: Any, name: str | None = None) -> Tree:
    if isinstance(value, _Pairs):
        return Tree("object", parts=tuple([_tree(v, key) for key, v in value]), name=name)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return Tree("list", parts=tuple([_tree(item) for item in value]), name=name)
    if isinstance(value, _Number):
        return Tree("number", str(value), name=name)
    if isinstance(value, str):
        return Tree("text", value, name=name)
    return Tree("word", json.dumps(value), name=name)


def _quote(text: str) -> str:
    """Escaped only where UTF-8 cannot hold it: half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(text)
    return json.dumps(text, ensure_ascii=False)
