"""Parked letters as JSON lines or CSV, read piece by piece: memory stays the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django.db.models import QuerySet

from delayboard.dead_letters.transfer import serialize
from delayboard.models import Body, DeadLetter
from topology.content.export_format import csv_line
from topology.redaction import Masks

# Letters and bytes of bodies that are read at a time; one larger body is read alone.
CHUNK = 500
CHUNK_BYTES = 8_000_000
PART_BYTES = 65_536

Letters = QuerySet[DeadLetter]


def as_json_lines(letters: Letters, hidden: Masks) -> Iterator[bytes]:
    for letter, body in read(letters):
        yield serialize.line(serialize.record(letter, body, hidden))


def as_csv(letters: Letters, hidden: Masks) -> Iterator[bytes]:
    """With a line of names first."""
    yield csv_line(serialize.COLUMNS)
    for letter, body in read(letters):
        yield csv_line(serialize.row(letter, body, hidden))


FORMATS: dict[str, tuple[str, Callable[[Letters, Masks], Iterator[bytes]]]] = {
    "jsonl": ("application/x-ndjson", as_json_lines),
    "csv": ("text/csv; charset=utf-8", as_csv),
}


def gathered(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in parts that are worth sending."""
    part = bytearray()
    for line in lines:
        part += line
        if len(part) >= PART_BYTES:
            yield bytes(part)
            part.clear()
    if part:
        yield bytes(part)


def read(letters: Letters) -> Iterator[tuple[DeadLetter, bytes]]:
    """Each letter with its body, the newest first."""
    rows = letters.select_related("group", "broker").order_by("-pk")
    rest = rows
    while chunk := list(rest[:CHUNK]):
        for some in _pieces(chunk):
            keys = {row.body_id for row in some}
            bodies = dict(Body.objects.filter(pk__in=keys).values_list("pk", "data"))
            for row in some:
                yield row, bytes(bodies.get(row.body_id, b""))
        rest = rows.filter(pk__lt=chunk[-1].pk)


def _pieces(chunk: list[DeadLetter]) -> Iterator[list[DeadLetter]]:
    piece: list[DeadLetter] = []
    size = 0
    for row in chunk:
        if piece and size + row.size > CHUNK_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(row)
        size += row.size
    if piece:
        yield piece
