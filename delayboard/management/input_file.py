"""The file that a command reads."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO

from django.core.management.base import CommandError


def opened(file: str) -> AbstractContextManager[IO[bytes]]:
    """A path, or - for standard input. Raises CommandError."""
    try:
        return nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb")
    except OSError as error:
        raise CommandError(f"“{file}” cannot be read: {error.strerror}.") from error
