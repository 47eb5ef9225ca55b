"""The files to import: found in folders, with formats detected from their content."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from analytics.mappings.mapping import Format as Format
from analytics.mappings.mapping import LogMapping, load_shipped, shipped_names

FORMATS: tuple[Format, ...] = ("json", "csv", "parquet")
WORDS: dict[Format, str] = {"json": "JSON", "csv": "CSV", "parquet": "Parquet", "text": "text"}
GZIP_MAGIC, PARQUET_MAGIC = b"\x1f\x8b", b"PAR1"
# Line between two messages of the plugin's text format (rabbit_tracing_consumer.erl).
TRACE_TEXT_BEGINS = b"=" * 80
TRACES, TRACES_IN_TEXT = "rabbitmq-tracing", "rabbitmq-tracing-text"
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".parquet", ".log")
HEAD_BYTES = 1024 * 1024


class Refused(Exception):
    """Nothing was imported; the message says why in one sentence."""


class Busy(Refused):
    """Another import is running."""


@dataclass(frozen=True)
class Source:
    """One file, or the folder of a partitioned Parquet table. Without a mapping its records are
    events.
    """

    path: Path
    format: Format
    mapping: LogMapping | None = None

    @property
    def is_trace(self) -> bool:
        return self.mapping is not None and self.mapping.trace is not None

    @property
    def is_gzip(self) -> bool:
        return self.format != "parquet" and _is_gzip(self.path)

    def open(self) -> BinaryIO:
        if self.is_gzip:
            return cast(BinaryIO, gzip.open(self.path))
        return self.path.open("rb")


def find(
    paths: Sequence[Path], given: Format | None = None, mapping: LogMapping | None = None
) -> list[Source]:
    """What these files and folders hold, each file once, in a stable order.

    Without a mapping files have events, or are traces of RabbitMQ. In a folder empty files, and
    names that begin with "_" or ".", are passed over. Raises Refused.
    """
    if mapping and given:
        raise Refused("The mapping names the format of its files. Leave out --format.")
    try:
        sources = [source for path in paths for source in _make_source(path, given, mapping)]
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise Refused(f"Delayboard cannot read {error.filename or 'a file'}: {reason}.") from error
    return list({source.path.resolve(): source for source in sources}.values())


def _make_source(path: Path, given: Format | None, mapping: LogMapping | None) -> Iterator[Source]:
    if path.is_dir():
        yield from _read_folder(path, given, mapping)
    elif not path.exists():
        raise Refused(f"The file {path} does not exist.")
    elif not path.is_file():
        raise Refused(f"{path} is not a regular file.")
    elif not path.stat().st_size:
        raise Refused(f"{path} is empty.")
    else:
        yield _of_file(path, given, mapping)


def _read_folder(
    folder: Path, given: Format | None, mapping: LogMapping | None
) -> Iterator[Source]:
    files = [path for path in sorted(folder.rglob("*")) if _is_data(path, folder)]
    if not files:
        raise Refused(
            f"The folder {folder} has no data. Add a file that ends with "
            f"{', '.join(SUFFIXES)}, or one of these with .gz."
        )
    for path in files:
        source = _of_file(path, given, mapping)
        is_table = source.format == "parquet"
        yield replace(source, path=_table(path, folder)) if is_table else source


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


def _of_file(path: Path, given: Format | None, mapping: LogMapping | None) -> Source:
    """The source in the format that was given, unless the file is surely of another; else in the
    format of its content.
    """
    head = read_head(path)
    looks = _looks_like(path, head)
    wanted = mapping.format if mapping else given
    # A mapping of text can read lines of any kind.
    if wanted and looks and wanted != looks and not (wanted == "text" and looks != "parquet"):
        by = f"the mapping {mapping.name} reads" if mapping else "--format is"
        raise Refused(f"{path} looks like {WORDS[looks]}, but {by} {WORDS[wanted]}.")
    if mapping:
        return Source(path, mapping.format, mapping)
    if found := _recognize(path, head, looks, given):
        return found
    proposed = propose(head, looks)
    if proposed:
        raise Refused(
            f"{path} has no events of Delayboard. It looks like {proposed.title}: add "
            f"--mapping {proposed.name}."
        )
    raise Refused(
        f"Delayboard cannot detect the format of {path}. Set it with --format, or describe the "
        "log with --mapping."
    )


def read_head(path: Path) -> bytes:
    """The first mebibyte, unpacked. Raises Refused, OSError."""
    try:
        with gzip.open(path) if _is_gzip(path) else path.open("rb") as unpacked:
            return unpacked.read(HEAD_BYTES)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Refused(f"{path} is not a valid gzip file: {error}.") from error


def _looks_like(path: Path, head: bytes) -> Format | None:
    if head.startswith(PARQUET_MAGIC):
        with path.open("rb") as file:
            file.seek(-4, os.SEEK_END)
            if file.read() != PARQUET_MAGIC:
                raise Refused(f"{path} is an incomplete Parquet file.")
        return "parquet"
    line = first_line(head)
    if line.startswith(b"{") or (line.startswith(b"[") and line[1:].lstrip()[:1] in (b"{", b"")):
        return "json"
    return "csv" if {b"event_id", b"kind", b"recorded_at"} <= set(_columns(line)) else None


def first_line(head: bytes) -> bytes:
    """The first line that is not blank."""
    return next((line for line in head.splitlines() if line.strip()), b"").strip()


def _columns(line: bytes) -> list[bytes]:
    return line.removeprefix(b"\xef\xbb\xbf").replace(b'"', b"").split(b",")


def _recognize(
    path: Path, head: bytes, looks: Format | None, given: Format | None
) -> Source | None:
    """A file of events or a trace; None for any other log."""
    if looks in ("parquet", "csv"):
        return Source(path, looks)
    if looks == "json" and (first := first_record(head)) is not None:
        if "event_id" in first:
            return Source(path, "json")
        traces = load_shipped(TRACES)
        if traces.recognizes(first):
            return Source(path, "json", traces)
        # Of another log; lines of events may begin with a malformed one.
        return Source(path, "json") if given and not propose(head, looks) else None
    if first_line(head).startswith(TRACE_TEXT_BEGINS):
        return Source(path, "text", load_shipped(TRACES_IN_TEXT)) if given is None else None
    if given or _suffix(path) in (".jsonl", ".ndjson"):
        return Source(path, given or "json")
    return None


def first_record(head: bytes) -> Mapping[str, Any] | None:
    """The object of the first line, or the first of a document; None where there is none."""
    text = first_line(head) if first_line(head).startswith(b"{") else head.strip()
    for candidate in (text, head.strip()):
        try:
            values = orjson.loads(candidate)
        except orjson.JSONDecodeError:
            continue
        if isinstance(values, list) and values:
            values = values[0]
        if isinstance(values, dict):
            return values
    return None


def propose(head: bytes, looks: Format | None) -> LogMapping | None:
    """The shipped mapping whose fields a file begins with; the one that knows most of them."""
    if first_line(head).startswith(TRACE_TEXT_BEGINS):
        return load_shipped(TRACES_IN_TEXT)
    record = first_record(head)
    found = []
    for mapping in map(load_shipped, shipped_names()):
        if looks == "json" and record is not None and mapping.format == "json":
            items = list(record.values())[:1] if mapping.items else [record]
            if any(isinstance(item, dict) and mapping.recognizes(item) for item in items):
                found.append(mapping)
        elif looks is None and mapping.format == "csv":
            names = {name.decode("utf-8", "replace").strip() for name in _columns(first_line(head))}
            if set(mapping.recognized_by) <= names:
                found.append(mapping)
    return max(found, key=lambda mapping: len(mapping.recognized_by), default=None)


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == GZIP_MAGIC
