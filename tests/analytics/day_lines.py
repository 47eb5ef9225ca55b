"""The events that the log has of a day."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from analytics.events import EventError, MessageEvent, decode
from analytics.log import day_files, day_folders


@dataclass
class DayLines:
    """The events of one day, file by file; `lines` and `malformed` count as it is iterated."""

    files: Sequence[Path]
    lines: int = 0
    malformed: int = 0

    def __iter__(self) -> Iterator[MessageEvent]:
        self.lines = self.malformed = 0
        for path in self.files:
            with path.open("rb") as file:
                yield from self._events(file)

    def _events(self, lines: Iterable[bytes]) -> Iterator[MessageEvent]:
        for line in lines:
            self.lines += 1
            try:
                yield decode(line)
            except EventError:
                self.malformed += 1


def read_day(folder: Path, day: date) -> DayLines:
    return DayLines(day_files(folder, day))


def days(folder: Path) -> list[date]:
    """The days that the log holds anything of, oldest first."""
    return [day for day, _ in day_folders(folder) if day_files(folder, day)]
