"""Events in the forms that can be imported."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import orjson

from analytics.events import FIELDS, MessageEvent, encode


def as_csv(events: Iterable[MessageEvent], *, header: bool = True) -> str:
    """RFC 4180, every field of the schema."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, FIELDS)
    if header:
        writer.writeheader()
    for event in events:
        values = orjson.loads(encode(event))
        writer.writerow({name: _cell(value) for name, value in values.items()})
    return out.getvalue()


def write_csv(path: Path, events: Iterable[MessageEvent]) -> None:
    path.write_text(as_csv(events), newline="")


def write_lines(path: Path, lines: Sequence[bytes]) -> None:
    """Lines with their ends; packed if the name says so."""
    text = b"".join(line + b"\n" for line in lines)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, list):
        return orjson.dumps(value).decode()
    return str(value).lower() if isinstance(value, bool) else value
