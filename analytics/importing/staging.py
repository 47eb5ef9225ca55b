"""Puts the files to import into a folder for the Spark job, under neutral names.

Plain JSON lines and Parquet are linked. Files that Spark cannot number, or would read differently
(gzip, CSV, traces), are written as lines, each at its own place, so that line numbers stay those of
the file.
"""

from __future__ import annotations

import io
import shutil
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from analytics.events import EventError, encode
from analytics.importing.refused import Refused
from analytics.importing.sources import Source
from analytics.importing.tables import PROBLEM_MARK, NoTable, lines_of_table
from analytics.importing.trace_lines import TraceScope, event_of_line

FOLDERS = ("raw", "staged", "traces", "parquet")


@dataclass(frozen=True)
class Staged:
    """What lies where: by its name below the folder, such as `raw/000001`, a source."""

    sources: dict[str, Source]

    def size(self, work: Path) -> int:
        """Bytes of all that was staged, wherever it lies."""
        roots = ((work / name).resolve() for name in self.sources)
        return sum(
            path.stat().st_size
            for root in roots
            for path in (root.rglob("*.parquet") if root.is_dir() else [root])
        )

    def name_of(self, below: str) -> str:
        """The original file name for a name that the job reported."""
        place = PurePosixPath(below)
        source = self.sources["/".join(place.parts[:2])]
        return str(source.path.joinpath(*place.parts[2:]))


def stage(sources: Iterable[Source], work: Path, scope: TraceScope | None) -> Staged:
    """Raises Refused for a file that cannot be read as what it is; OSError for the folder's."""
    for folder in FOLDERS:
        (work / folder).mkdir()
    placed = {}
    for number, source in enumerate(sources, start=1):
        folder = _folder(source)
        place = work / folder / f"{number:06}"
        if folder == "parquet" or (folder == "raw" and not source.is_gzip):
            place.symlink_to(source.path.absolute())
        else:
            _write_out(source, place, scope)
        placed[f"{folder}/{place.name}"] = source
    return Staged(placed)


def _folder(source: Source) -> str:
    return {"jsonl": "raw", "csv": "staged", "tracing": "traces", "parquet": "parquet"}[
        source.format
    ]


def _write_out(source: Source, place: Path, scope: TraceScope | None) -> None:
    with place.open("wb") as out:
        try:
            with source.open() as file:
                if source.format == "jsonl":
                    shutil.copyfileobj(file, out)
                else:
                    out.writelines(line + b"\n" for line in _lines(source, file, scope))
        except (EOFError, zlib.error, UnicodeDecodeError) as error:
            raise Refused(f"Delayboard cannot read {source.path} to its end: {error}.") from error
        except NoTable as error:
            raise Refused(f"{source.path} {error}.") from error


def _lines(source: Source, file: BinaryIO, scope: TraceScope | None) -> Iterator[bytes]:
    if source.format == "csv":
        with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            yield from lines_of_table(text)
    else:
        assert scope is not None
        for line in file:
            yield _of_trace(line.strip(), scope)


def _of_trace(line: bytes, scope: TraceScope) -> bytes:
    if not line:
        return b""
    try:
        event = event_of_line(line, scope)
    except (EventError, OverflowError) as error:
        return PROBLEM_MARK + str(error).encode("utf-8", "backslashreplace").replace(b"\n", b" ")
    return encode(event) if event else b""
