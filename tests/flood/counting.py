"""What a recorder has written, read from outside while it writes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from tests.flood.generator import number_of

CHUNK_BYTES = 4 * 1024 * 1024
FILES = "date=*/hour=*/tap.*.jsonl"


@dataclass
class LineCount:
    """Counts the whole lines of the taps' files in a log, each byte read once."""

    log: Path
    lines: int = 0
    _read: dict[Path, int] = field(default_factory=dict)

    def now(self) -> int:
        for path in self.log.glob(FILES):
            with path.open("rb", buffering=0) as file:
                file.seek(self._read.get(path, 0))
                while chunk := file.read(CHUNK_BYTES):
                    self.lines += chunk.count(b"\n")
                self._read[path] = file.tell()
        return self.lines


def times_recorded(log: Path, sent: int) -> Counter[int]:
    """How many messages of a flood are in the log how many times."""
    times = bytearray(sent)
    for path in log.glob(FILES):
        with path.open("rb") as file:
            for line in file:
                times[number_of(orjson.loads(line)["message_id"])] += 1
    return Counter(times)
