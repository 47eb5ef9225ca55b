"""Puts the files to import into a folder for the Spark job, under neutral names.

Plain JSON lines and Parquet are linked. Files that Spark cannot number, or would read differently
(gzip, CSV, traces), are written as lines, each at its own place, so that line numbers stay those of
the file.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import orjson

from analytics.events import FIELDS, EventError, FieldType, encode
from analytics.importing.sources import Refused, Source
from analytics.importing.trace_lines import TraceScope, event_of_line

FOLDERS = {"jsonl": "raw", "csv": "staged", "tracing": "traces", "parquet": "parquet"}
NEEDED = ("event_id", "kind", "recorded_at")
PROBLEM_MARK = b"!"
LONGEST_CELL = 64 * 1024 * 1024
_INTEGER = re.compile(r"-?[0-9]{1,19}")
_BOOLEANS = {"true": True, "false": False}


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
    for folder in FOLDERS.values():
        (work / folder).mkdir()
    placed = {}
    for number, source in enumerate(sources, start=1):
        folder = FOLDERS[source.format]
        place = work / folder / f"{number:06}"
        if folder == "parquet" or (folder == "raw" and not source.is_gzip):
            place.symlink_to(source.path.absolute())
        else:
            _write_out(source, place, scope)
        placed[f"{folder}/{place.name}"] = source
    return Staged(placed)


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
        for line in map(bytes.strip, file):
            try:
                event = event_of_line(line, scope) if line else None
                yield encode(event) if event else b""
            except (EventError, OverflowError) as error:
                why = str(error).encode("utf-8", "backslashreplace")
                yield PROBLEM_MARK + why.replace(b"\n", b" ")


class NoTable(ValueError):
    """The first row contains none of the required columns; the message lists them."""


def lines_of_table(text: Iterable[str]) -> Iterator[bytes]:
    """A line for every line of the file, without its end: a row, a problem or nothing.

    `text` comes line by line with the ends kept. Raises NoTable.
    """
    csv.field_size_limit(LONGEST_CELL)
    rows = csv.reader(text, strict=True)
    try:
        columns = next(rows, [])
    except csv.Error as error:
        raise NoTable(f"has no readable header: {error}") from error
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise NoTable(f"has no column {', '.join(missing)}")
    yield from [b""] * rows.line_num
    while True:
        begins = rows.line_num
        try:
            line = _line(columns, next(rows))
        except StopIteration:
            return
        except csv.Error as error:
            line = PROBLEM_MARK + f"The row is not readable: {error}.".encode()
        yield line
        yield from [b""] * (rows.line_num - begins - 1)


def _line(columns: Sequence[str], cells: Sequence[str]) -> bytes:
    if not cells:
        return b""
    if len(cells) != len(columns):
        why = f"The row has {len(cells)} cells, but the header has {len(columns)}."
        return PROBLEM_MARK + why.encode()
    values = {
        name: _value(FIELDS[name], cell)
        for name, cell in zip(columns, cells, strict=True)
        if name in FIELDS and (cell or FIELDS[name] == "text")
    }
    return orjson.dumps(values)


def _value(kind: FieldType, cell: str) -> Any:
    """What cannot be read stays a text, which the field then refuses."""
    if kind == "integer" and _INTEGER.fullmatch(cell):
        return int(cell)
    if kind == "boolean":
        return _BOOLEANS.get(cell.lower(), cell)
    if kind == "list of failures":
        try:
            return orjson.loads(cell)
        except orjson.JSONDecodeError:
            return cell
    return cell
