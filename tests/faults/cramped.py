"""Surroundings in which the event log has little room, or none that it may write to.

Made by bubblewrap for the process and its children alone; no root is needed. Its capabilities
are dropped, so that permissions hold for root too.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from io import RawIOBase
from pathlib import Path

from tests.builders import eventually

ORDINARY = ("bwrap", "--dev-bind", "/", "/", "--die-with-parent", "--cap-drop", "ALL")
BALLAST = "ballast"


def small_disk(folder: Path, size: int) -> tuple[str, ...]:
    """With a disk of so many bytes at this folder."""
    return (*ORDINARY, "--size", str(size), "--tmpfs", str(folder))


def seen_from_outside(process: subprocess.Popen[bytes], folder: Path) -> Path:
    """Where we see the small disk that the process has at this folder."""

    def found() -> Path | None:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for child in children:
            inside = Path(f"/proc/{child}/root") / folder.relative_to("/")
            # Its root is another for a moment while bubblewrap makes it.
            with suppress(FileNotFoundError):
                if inside.is_mount():
                    return inside
        return None

    return eventually(found, "the process has its small disk")


def fill(disk: Path) -> None:
    """Leave no room for a single byte."""
    with (disk / BALLAST).open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            _write_until_full(file, os.urandom(size))


def _write_until_full(file: RawIOBase, piece: bytes) -> None:
    with suppress(OSError):
        while True:
            file.write(piece)


def empty(disk: Path) -> None:
    (disk / BALLAST).unlink()
