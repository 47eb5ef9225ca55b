"""A file that is written while it is read, whatever serves the site."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

from topology.content.export_format import FORMS

PART_BYTES = 65_536


def download(
    request: HttpRequest, lines: Iterator[bytes], form: str, name: str
) -> StreamingHttpResponse:
    """An answer that is kept as a file of one of the FORMS; its name ends with the time."""
    parts = gathered(lines)
    file = f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.{form}"
    return StreamingHttpResponse(
        one_by_one(parts) if isinstance(request, ASGIRequest) else parts,
        content_type=FORMS[form],
        headers={"Content-Disposition": f'attachment; filename="{file}"'},
    )


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


async def one_by_one(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Under ASGI Django would gather the whole of a plain iterator first."""

    def following() -> bytes | None:
        return next(parts, None)

    while (part := await sync_to_async(following)()) is not None:
        yield part
