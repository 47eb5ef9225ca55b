"""The headers of a message as rows of name, AMQP type and value."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django import forms

from delayboard.dead_letters.replay.edit_headers import (
    TYPES,
    HeaderRow,
    explain_lock,
    make_header_rows,
)
from topology.broker.properties.field_values import FieldError, write_table
from topology.content.text import make_encodable
from topology.forms.fields import HeadersField

PARTS = ("name", "type", "text")


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
