"""Small files that a page uploads; larger ones are read by a command."""

from __future__ import annotations

from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest

MOST_BYTES = 20_000_000


def read_upload(request: HttpRequest, command: str) -> UploadedFile[bytes] | None:
    """The posted `file`; None, with a message, for one that is missing, empty or too large."""
    file = request.FILES.get("file")
    if file is None or not file.size:
        messages.error(request, "Nothing was imported. Choose a file that is not empty.")
        return None
    if file.size > MOST_BYTES:
        messages.error(
            request,
            f"Nothing was imported. The file is larger than 20 MB. Use manage.py {command} FILE.",
        )
        return None
    return file
