"""A file that is written while it is read, whatever serves the site."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

Part = TypeVar("Part", str, bytes)


def download(
    request: HttpRequest, parts: Iterator[Part], content_type: str, name: str
) -> StreamingHttpResponse:
    """An answer that is kept as the file `name`."""
    return StreamingHttpResponse(
        one_by_one(parts) if isinstance(request, ASGIRequest) else parts,
        content_type=content_type,
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


async def one_by_one(parts: Iterator[Part]) -> AsyncIterator[Part]:
    """Under ASGI Django would gather the whole of a plain iterator first."""

    def following() -> Part | None:
        return next(parts, None)

    while (part := await sync_to_async(following)()) is not None:
        yield part
