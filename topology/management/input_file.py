"""The file that a command reads."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, Any

from topology.management.exit_codes import BadInput

MAXIMUM_BYTES = 500_000_000


def is_file(source: str) -> bool:
    """Whether it is a file and not a broker, whose slug has neither a dot nor a slash."""
    return source == "-" or "." in source or "/" in source


def opened(file: str) -> AbstractContextManager[IO[bytes]]:
    """A path, or - for standard input. Raises BadInput."""
    try:
        return nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb")
    except OSError as error:
        raise BadInput(f"“{file}” cannot be read: {error.strerror}.") from error


def read_json(file: str) -> Any:
    """Parse a path, or - for standard input. Raises BadInput."""
    name = "The standard input" if file == "-" else f"The file “{file}”"
    try:
        with opened(file) as stream:
            raw = stream.read(MAXIMUM_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{name} cannot be read: {error.strerror}.") from error
    if len(raw) > MAXIMUM_BYTES:
        raise BadInput(f"{name} is larger than {MAXIMUM_BYTES // 1_000_000} MB.")
    if not raw.strip():
        raise BadInput(f"{name} is empty.")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name} is not JSON.") from error
