"""Moves finished files into the log, each whole and on disk, or not at all."""

from __future__ import annotations

import os
from collections import Counter
from datetime import date
from pathlib import Path

from analytics.log import make_folder, sync_folder


def publish(out: Path, log: Path, name: str) -> dict[date, int]:
    """Move `out/date=…/hour=…/*.txt` to the hours of the log, oldest first; lines by day.

    Both lie on one file system. A crash in between leaves some of the hours in the log and none
    of the others. Raises OSError.
    """
    added: Counter[date] = Counter()
    for hour in sorted(out.glob("date=*/hour=*")):
        day = hour.parent.name
        folder = log / day / hour.name
        make_folder(folder)
        for number, part in enumerate(sorted(hour.glob("*.txt")), start=1):
            added[date.fromisoformat(day.removeprefix("date="))] += _settle(part)
            part.rename(folder / f"import.{name}-{number}.jsonl")
        sync_folder(folder)
    return dict(added)


def _settle(part: Path) -> int:
    """Get the file to disk; its lines."""
    part.chmod(0o640)
    lines = 0
    with part.open("rb") as file:
        while piece := file.read(1024 * 1024):
            lines += piece.count(b"\n")
        os.fsync(file)
    return lines
