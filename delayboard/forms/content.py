"""The content of a message as it is typed: headers as rows, the body as text, JSON or base64."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from django import forms

from delayboard.dead_letters.replay.edit_headers import (
    TYPES,
    HeaderRow,
    explain_lock,
    make_header_rows,
)
from topology.broker.properties.field_values import FieldError, write_table
from topology.content.json_tree import Tree, read_json, write_json
from topology.content.text import make_encodable
from topology.forms.fields import HeadersField

PARTS = ("name", "type", "text")
BodyFormat = Literal["text", "json", "base64"]
FORMATS: tuple[tuple[BodyFormat, str], ...] = (
    ("text", "Text"),
    ("json", "JSON"),
    ("base64", "Base64"),
)
LARGEST_BODY = 8 * 1024 * 1024


class HeaderRowsWidget(forms.Textarea):
    """Reads rows; without rows a JSON object, as a command or a link has it."""

    def value_from_datadict(self, data: Any, files: Any, name: str) -> Any:
        if f"{name}-name" not in data:
            return data.get(name, "")
        return list(map(HeaderRow, *(data.getlist(f"{name}-{part}") for part in PARTS)))


class HeaderRowsField(HeadersField):
    """Cleans rows to headers; an empty row is none."""

    widget = HeaderRowsWidget()

    def clean(self, value: Any) -> dict[str, Any]:
        if isinstance(value, str) or value is None:
            return super().clean(value)
        found: dict[str, Any] = {}
        problems = []
        for row in (HeaderRow(*one) for one in value if one[0] or one[2]):
            try:
                found[row.name] = _read(row, found)
            except ValueError as error:
                problems.append(f"{row.name or 'Header'}: {error}")
        if problems:
            raise forms.ValidationError(problems)
        return found


def _read(row: HeaderRow, others: Mapping[str, Any]) -> Any:
    """The value of the row. Raises ValueError with a sentence."""
    if not row.name:
        raise ValueError("Enter the name of this header.")
    if row.name in others:
        raise ValueError("Another row has this name.")
    if explain_lock(row.name):
        raise ValueError("RabbitMQ or Delayboard sets this header. Remove the row.")
    if row.type not in TYPES:
        raise ValueError("Choose a type.")
    # A browser sends a line's end as CRLF.
    value = TYPES[row.type](row.text.replace("\r\n", "\n"))
    try:
        write_table({row.name: value})
    except FieldError as error:
        raise ValueError(str(error)) from error
    return value


def make_rows(value: Any) -> Sequence[HeaderRow]:
    """The rows of what the field holds: rows, or a JSON object; none of what cannot be read."""
    if not isinstance(value, str):
        return [HeaderRow(*one) for one in value or () if one[0] or one[2]]
    try:
        read = json.loads(value or "{}")
    except (ValueError, RecursionError):
        return []
    found = make_header_rows(read if isinstance(read, dict) else {})
    return [HeaderRow(*map(make_encodable, row)) for row in found]


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
