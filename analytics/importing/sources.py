"""The files to import: found in folders, with formats detected from their content."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias, cast, get_args

import orjson

Format: TypeAlias = Literal["jsonl", "csv", "parquet", "tracing"]
FORMATS: tuple[Format, ...] = get_args(Format)
WORDS: dict[Format, str] = {
    "jsonl": "JSON lines",
    "csv": "CSV",
    "parquet": "Parquet",
    "tracing": "a trace of RabbitMQ",
}
GZIP_MAGIC, PARQUET_MAGIC = b"\x1f\x8b", b"PAR1"
# Between any two messages of the plugin's text format (rabbit_tracing_consumer.erl).
TRACE_TEXT_BEGINS = b"=" * 80
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".parquet", ".log")
HEAD_BYTES = 1024 * 1024


class Refused(Exception):
    """Nothing was imported; the message says why in one sentence."""


@dataclass(frozen=True)
class Source:
    """One file, or the folder of a partitioned Parquet table."""

    path: Path
    format: Format

    @property
    def is_gzip(self) -> bool:
        return self.format != "parquet" and _is_gzip(self.path)

    def open(self) -> BinaryIO:
        if self.is_gzip:
            return cast(BinaryIO, gzip.open(self.path))
        return self.path.open("rb")


def find(paths: Sequence[Path], given: Format | None) -> list[Source]:
    """What these files and folders hold, each file once, in a stable order.

    In a folder empty files, and names that begin with "_" or ".", are passed over. Raises
    Refused.
    """
    try:
        sources = [source for path in paths for source in _make_source(path, given)]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise Refused(f"Delayboard cannot read {error.filename or 'a file'}: {reason}.") from error
    return list({source.path.resolve(): source for source in sources}.values())


def _make_source(path: Path, given: Format | None) -> Iterator[Source]:
    if path.is_dir():
        yield from _read_folder(path, given)
    elif not path.exists():
        raise Refused(f"The file {path} does not exist.")
    elif not path.is_file():
        raise Refused(f"{path} is not a regular file.")
    elif not path.stat().st_size:
        raise Refused(f"{path} is empty.")
    else:
        yield Source(path, _kind_of(path, given))


def _read_folder(folder: Path, given: Format | None) -> Iterator[Source]:
    files = [path for path in sorted(folder.rglob("*")) if _is_data(path, folder)]
    if not files:
        raise Refused(
            f"The folder {folder} has no data. Add a file that ends with "
            f"{', '.join(SUFFIXES)}, or one of these with .gz."
        )
    for path in files:
        kind = _kind_of(path, given)
        yield Source(_table(path, folder) if kind == "parquet" else path, kind)


def _table(path: Path, folder: Path) -> Path:
    """The folder of a table whose parts lie in folders like `kind=died`; else the file."""
    parts = path.relative_to(folder).parts[:-1]
    first = next((number for number, part in enumerate(parts) if "=" in part), None)
    return path if first is None else folder.joinpath(*parts[:first])


def _is_data(path: Path, folder: Path) -> bool:
    names = path.relative_to(folder).parts
    is_shown = not any(name.startswith(("_", ".")) for name in names)
    return is_shown and _suffix(path) in SUFFIXES and path.is_file() and path.stat().st_size > 0


def _suffix(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def _kind_of(path: Path, given: Format | None) -> Format:
    """The format that was given, unless the file is surely of another; else what it looks like."""
    try:
        looks = _looks_like(path)
    except (gzip.BadGzipFile, EOFError) as error:
        raise Refused(f"{path} is not a valid gzip file: {error}.") from error
    if given and looks and given != looks:
        raise Refused(f"{path} looks like {WORDS[looks]}, but --format is {WORDS[given]}.")
    if kind := given or looks:
        return kind
    if _suffix(path) in (".jsonl", ".ndjson"):
        return "jsonl"
    raise Refused(f"Delayboard cannot detect the format of {path}. Set it with --format.")


def _looks_like(path: Path) -> Format | None:
    with gzip.open(path) if _is_gzip(path) else path.open("rb") as unpacked:
        head = unpacked.read(HEAD_BYTES)
    if head.startswith(PARQUET_MAGIC):
        with path.open("rb") as file:
            file.seek(-4, os.SEEK_END)
            if file.read() != PARQUET_MAGIC:
                raise Refused(f"{path} is an incomplete Parquet file.")
        return "parquet"
    line = next((line for line in head.splitlines() if line.strip()), b"").strip()
    if line.startswith(TRACE_TEXT_BEGINS):
        raise Refused(
            f"{path} is a text trace of RabbitMQ, whose format is ambiguous. Create the "
            'trace with "format": "json".'
        )
    if line.startswith(b"{"):
        return _detect_json(line)
    columns = line.removeprefix(b"\xef\xbb\xbf").replace(b'"', b"").split(b",")
    return "csv" if {b"event_id", b"kind", b"recorded_at"} <= set(columns) else None


def _detect_json(line: bytes) -> Format | None:
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if "event_id" in values:
        return "jsonl"
    return "tracing" if {"type", "routing_keys", "properties"} <= values.keys() else None


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == GZIP_MAGIC
