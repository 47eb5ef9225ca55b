"""Parked messages as JSON lines or CSV, read piece by piece: memory stays the same."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import QuerySet

from delayboard.dead_letters.transfer import serialize
from delayboard.models import Body, ParkedMessage
from topology.content.export_format import write_export
from topology.redaction import Redaction

# Messages and bytes of bodies that are read at a time; one larger body is read alone.
CHUNK = 500
CHUNK_BYTES = 8_000_000

ParkedMessages = QuerySet[ParkedMessage]


def write(form: str, parked_messages: ParkedMessages, hidden: Redaction) -> Iterator[bytes]:
    return write_export(
        form,
        serialize.COLUMNS,
        read(parked_messages),
        lambda pair: serialize.line(serialize.record(*pair, hidden)),
        lambda pair: serialize.row(*pair, hidden),
    )


def read(parked_messages: ParkedMessages) -> Iterator[tuple[ParkedMessage, bytes]]:
    """Each message with its body, the newest first."""
    rows = parked_messages.select_related("group", "broker").order_by("-pk")
    rest = rows
    while chunk := list(rest[:CHUNK]):
        for some in _pieces(chunk):
            keys = {row.body_id for row in some}
            bodies = dict(Body.objects.filter(pk__in=keys).values_list("pk", "data"))
            for row in some:
                yield row, bytes(bodies.get(row.body_id, b""))
        rest = rows.filter(pk__lt=chunk[-1].pk)


def _pieces(chunk: list[ParkedMessage]) -> Iterator[list[ParkedMessage]]:
    piece: list[ParkedMessage] = []
    size = 0
    for row in chunk:
        if piece and size + row.size > CHUNK_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(row)
        size += row.size
    if piece:
        yield piece
