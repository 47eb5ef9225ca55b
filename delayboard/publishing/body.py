"""The body of a message as it is typed: text, JSON or base64."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Literal

from topology.content.json_tree import Tree, read_json, write_json

BodyFormat = Literal["text", "json", "base64"]
FORMATS: tuple[tuple[BodyFormat, str], ...] = (
    ("text", "Text"),
    ("json", "JSON"),
    ("base64", "Base64"),
)
LARGEST_BODY = 8 * 1024 * 1024


class BodyError(ValueError):
    """The message is a sentence about what is wrong with the typed body."""


def read_body(text: str, kind: str) -> bytes:
    """The bytes of the body. Raises BodyError."""
    text = text.replace("\r\n", "\n")
    if kind == "base64":
        body = _decode(text)
    else:
        body = text.encode()
        if kind == "json":
            _check_json(text)
    if len(body) > LARGEST_BODY:
        raise BodyError("The body is larger than 8 MB. Shorten the body.")
    return body


def format_json(text: str) -> str:
    """The same JSON with a value in each line; numbers keep their digits. Raises BodyError."""
    _check_json(text)
    tree = read_json(text.encode())
    return text if tree is None else _indented(tree, "")


def _indented(tree: Tree, indent: str) -> str:
    if not tree.parts:
        return write_json(tree)
    deeper = f"{indent}  "
    names = [f"{json.dumps(part.name, ensure_ascii=False)}: " for part in tree.parts]
    lines = [
        f"{deeper}{name if tree.kind == 'object' else ''}{_indented(part, deeper)}"
        for name, part in zip(names, tree.parts, strict=True)
    ]
    joined = ",\n".join(lines)
    begin, end = "{}" if tree.kind == "object" else "[]"
    return f"{begin}\n{joined}\n{indent}{end}"


def _check_json(text: str) -> None:
    try:
        json.loads(text)
    except RecursionError as error:
        raise BodyError("The JSON is nested too deeply. Select the format text.") from error
    except ValueError as error:
        raise BodyError(
            f"The body is not JSON: {error}. Correct the body, or select the format text."
        ) from error


def _decode(text: str) -> bytes:
    try:
        return b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise BodyError(
            f"The body is not base64: {error}. Correct the body, or select the format text."
        ) from error
