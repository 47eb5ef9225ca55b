"""Puts the files to import into a folder for the Spark job, under neutral names.

Plain JSON lines and Parquet are linked. Files that Spark cannot number, or would read differently
(gzip, CSV, text, documents, traces), are written as lines, each at its own place, so that line
numbers stay those of the file.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import IO, Any, AnyStr, BinaryIO

import orjson

from analytics.events import (
    FIELDS,
    LARGEST_NUMBER,
    TRACE_ID,
    EventError,
    FieldType,
    MessageEvent,
    encode,
    read_object,
)
from analytics.importing.sources import Refused, Source, first_line, read_head
from analytics.mappings.mapping import LogMapping, SlowPattern, iterate_items, search
from analytics.mappings.values import RecordError
from analytics.recorder.traces import (
    DELIVER,
    PUBLISH,
    Trace,
    Watched,
    event_of_trace,
    is_own,
    read_trace,
)
from topology.deaths import read_history
from topology.message import Message, Properties

# Folders of an import: events and records of a mapping, as they came or as we wrote them; tables.
FOLDERS = ("raw", "staged", "mapped", "records", "traces", "parquet")
# File with what Spark needs of the one mapping of an import.
MAPPING_FILE = "mapping.json"
NEEDED = ("event_id", "kind", "recorded_at")
PIECE_BYTES, LINES_A_PULSE = 16 * 1024 * 1024, 2_000
LARGEST_DOCUMENT = 512 * 1024 * 1024
PROBLEM_MARK = b"!"
LONGEST_LINE = LONGEST_CELL = 64 * 1024 * 1024
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


def stage(
    sources: Sequence[Source],
    work: Path,
    scope: Scope | None,
    *,
    most_bytes: int | None = None,
    pulse: Callable[[], None] = lambda: None,
) -> Staged:
    """`pulse` is called again and again. Raises Refused for a file that cannot be read as what it
    is, and once more than `most_bytes` would be written; OSError for the folder's.
    """
    for folder in FOLDERS:
        (work / folder).mkdir()
    if sources[0].mapping and not sources[0].is_trace:
        assert scope is not None
        names = {"broker": scope.broker, "vhost": scope.vhost, "topology": scope.topology}
        mapping = sources[0].mapping
        described = {"name": mapping.name, "text": mapping.text, "defaults": names}
        (work / MAPPING_FILE).write_bytes(orjson.dumps(described))
    placed = {}
    for number, source in enumerate(sources, start=1):
        folder, is_linked = _choose_folder(source)
        place = work / folder / f"{number:06}"
        if is_linked:
            place.symlink_to(source.path.absolute())
        else:
            with place.open("wb") as out:
                for piece in _pieces(source, scope, pulse):
                    if most_bytes is not None:
                        most_bytes -= len(piece)
                        if most_bytes < 0:
                            raise Refused(
                                f"{source.path} becomes larger, when it is read, than the disk of "
                                "the event log has room for. Free disk space, or import a part."
                            )
                    out.write(piece)
        placed[f"{folder}/{place.name}"] = source
    return Staged(placed)


def _choose_folder(source: Source) -> tuple[str, bool]:
    """The folder of a file, and whether Spark reads the file itself."""
    if source.format == "parquet":
        return "parquet", True
    if source.is_trace:
        return "traces", False
    is_lines = source.format == "json" and not source.is_gzip and not is_document(source)
    if source.mapping is None:
        return ("raw" if is_lines or source.format == "json" else "staged"), is_lines
    return ("mapped", True) if is_lines else ("records", False)


def _pieces(source: Source, scope: Scope | None, pulse: Callable[[], None]) -> Iterator[bytes]:
    """What Spark reads of a file: of a packed one of events as it is, else line by line."""
    try:
        with source.open() as file:
            if source.mapping is None and source.format == "json":
                while piece := file.read(PIECE_BYTES):
                    yield piece
                    pulse()
                return
            for number, line in enumerate(read_lines(source, file)):
                if number % LINES_A_PULSE == 0:
                    pulse()
                if source.is_trace:
                    assert scope is not None
                    line = _line_of_trace(line, source, scope)
                yield line + b"\n"
    except (EOFError, zlib.error, UnicodeDecodeError) as error:
        raise Refused(f"Delayboard cannot read {source.path} to its end: {error}.") from error
    except NoTable as error:
        raise Refused(f"{source.path} {error}.") from error
    except SlowPattern as error:
        raise Refused(f"{source.path}: {error}") from error


def is_document(source: Source) -> bool:
    """Whether the file is one JSON document with many records, as answers of an API are."""
    if source.format != "json" or source.mapping is None:
        return False
    return bool(source.mapping.items) or first_line(read_head(source.path)).startswith(b"[")


def read_lines(source: Source, file: BinaryIO) -> Iterator[bytes]:
    """A line for each line of the file, at the same number: a record as a JSON object, a problem
    with its mark, or nothing; of a document a line for each record. Raises NoTable.
    """
    mapping = source.mapping
    if source.format == "csv":
        with io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
            yield from lines_of_table(_bounded_lines(text), mapping)
    elif source.format == "text":
        assert mapping is not None
        with io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace") as text:
            yield from _lines_of_text(_bounded_lines(text), mapping)
    elif mapping is not None and is_document(source):
        yield from _lines_of_document(file, mapping)
    else:
        yield from map(bytes.strip, _bounded_lines(file))


def _bounded_lines(file: IO[AnyStr]) -> Iterator[AnyStr]:
    """A packed file of one line may be larger than the memory. Raises NoTable."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise NoTable(f"has a line of more than {LONGEST_LINE >> 20} MiB")
        yield line


def _lines_of_text(text: Iterable[str], mapping: LogMapping) -> Iterator[bytes]:
    """Each record at its first line."""
    if mapping.begins is None:
        for line in text:
            yield _split(line.rstrip("\r\n"), mapping) if line.strip() else b""
        return
    record: list[str] = []
    for line in text:
        if search(mapping.begins, line.rstrip("\r\n")) and record:
            yield from _place_record(record, mapping)
            record = []
        record.append(line)
    yield from _place_record(record, mapping)


def _place_record(record: Sequence[str], mapping: LogMapping) -> Iterator[bytes]:
    text = "".join(record)
    if record:
        yield _split(text, mapping) if text.strip() else b""
        yield from [b""] * (len(record) - 1)


def _split(text: str, mapping: LogMapping) -> bytes:
    try:
        return orjson.dumps(mapping.split_text(text))
    except RecordError as error:
        return PROBLEM_MARK + str(error).encode("utf-8", "backslashreplace")


def _lines_of_document(file: BinaryIO, mapping: LogMapping) -> Iterator[bytes]:
    text = file.read(LARGEST_DOCUMENT + 1)
    if len(text) > LARGEST_DOCUMENT:
        raise NoTable("is a JSON document of more than 512 MiB. Write a record on each line")
    try:
        for record in iterate_items(orjson.loads(text), mapping.items or "*"):
            yield orjson.dumps(record)
    except orjson.JSONDecodeError as error:
        raise NoTable(f"is no JSON document: {error}") from error
    except RecordError as error:
        raise NoTable(f"cannot be read. {error}") from error


class NoTable(ValueError):
    """The file cannot be read as what it seems to be; the message says why, without its subject."""


def lines_of_table(text: Iterable[str], mapping: LogMapping | None = None) -> Iterator[bytes]:
    """A line for every line of the file, without its end: a row, a problem or nothing.

    `text` comes line by line with the ends kept. Raises NoTable.
    """
    csv.field_size_limit(LONGEST_CELL)
    rows = csv.reader(text, delimiter=mapping.separator if mapping else ",", strict=True)
    columns: Sequence[str] = mapping.columns if mapping else ()
    if not columns:
        try:
            columns = next(rows, [])
        except csv.Error as error:
            raise NoTable(f"has no readable header: {error}") from error
    missing = [name for name in NEEDED if name not in columns]
    if missing and mapping is None:
        raise NoTable(f"has no column {', '.join(missing)}")
    yield from [b""] * rows.line_num
    while True:
        begins = rows.line_num
        try:
            line = _line(columns, next(rows), mapping)
        except StopIteration:
            return
        except csv.Error as error:
            line = PROBLEM_MARK + f"The row is not readable: {error}.".encode()
        yield line
        yield from [b""] * (rows.line_num - begins - 1)


def _line(columns: Sequence[str], cells: Sequence[str], mapping: LogMapping | None) -> bytes:
    if not cells:
        return b""
    if len(cells) != len(columns):
        why = f"The row has {len(cells)} cells, but the header has {len(columns)}."
        return PROBLEM_MARK + why.encode()
    row = zip(columns, cells, strict=True)
    if mapping:
        return orjson.dumps({name.strip(): cell for name, cell in row if cell})
    values = {
        name: _value(FIELDS[name], cell)
        for name, cell in row
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


@dataclass(frozen=True)
class Scope:
    """Whose log it is: the broker's slug and its vhost; the topology of events that name none.

    The `watched` topologies read traces. `ttls_ms` are the TTLs of queues by name, as far as known.
    """

    broker: str
    vhost: str
    watched: Sequence[Watched] = ()
    ttls_ms: Mapping[str, int] = field(default_factory=dict)
    topology: str = ""
    skipped: Sequence[str] = ()


def _line_of_trace(line: bytes, source: Source, scope: Scope) -> bytes:
    if not line or line.startswith(PROBLEM_MARK):
        return line
    assert source.mapping is not None
    try:
        event = event_of_line(line, scope, source.mapping)
    except (EventError, RecordError, OverflowError) as error:
        why = str(error).encode("utf-8", "backslashreplace")
        return PROBLEM_MARK + why.replace(b"\n", b" ")
    return encode(event) if event else b""


def event_of_line(line: bytes, scope: Scope, mapping: LogMapping) -> MessageEvent | None:
    """None for the reading of our own taps. Raises EventError, RecordError.

    The plugin writes what the firehose copies (rabbit_tracing_consumer.erl; tried on 3.10.8, 4.0.5
    and 4.3.6): properties by name, header values as JSON has them, the payload in base64 and cut at
    the trace's max_payload_bytes without a mark, the time in milliseconds with its zone. So a size
    is at least so much, and the content's hash is not that of a tap.

    Never `caught_up`: the file does not record whether the plugin kept up, and reports show when
    they measure by its clock. The id is a hash of the line, so that equal lines share it.
    """
    values = mapping.read_trace(read_object(line))
    # The firehose's copy that the plugin wrote down.
    match values.get("type"), values.get("exchange"), values.get("queue"):
        case "published", str(exchange), _:
            key = PUBLISH + exchange
        case "received", _, str(queue):
            key = DELIVER + queue
        case kind, _, _:
            raise EventError(f"The type of the line is neither published nor received: {kind!r}.")
    headers = {**values, "exchange_name": values.get("exchange")}
    try:
        body = b64decode(values["payload"], validate=True)
    except (KeyError, TypeError, ValueError) as error:
        raise EventError("The payload is missing or not base64.") from error
    copy = Message("amq.rabbitmq.trace", key, Properties(headers=headers), body)
    trace = read_trace(copy)
    if trace is None:
        raise EventError("The line has no routing keys or properties.")
    if values.get("vhost", scope.vhost) != scope.vhost:
        raise EventError(f"The message belongs to the virtual host {values.get('vhost')!r}.")
    return None if is_own(copy) else _event(line, values, trace, scope)


def _event(line: bytes, values: Mapping[str, Any], trace: Trace, scope: Scope) -> MessageEvent:
    event = event_of_trace(
        trace,
        scope.watched,
        broker=scope.broker,
        vhost=scope.vhost,
        event_id=f"{TRACE_ID}{hashlib.sha256(line).hexdigest()[:32]}",
        recorded_at=_moment(values.get("timestamp")),
        caught_up=False,
        keeps_deaths=False,
    )
    event = replace(event, source="import")
    if event.kind == "delivered" and not event.topology and event.death_reason == "expired":
        # The delivery of a message that expired in a queue of no topology, with trip and
        # delay. The delay is the shorter of the queue's TTL and the expiration that the
        # message had, as in the broker. x-death keeps that expiration of the first trip only,
        # and the broker removes it then.
        expired = [
            death
            for death in read_history(trace.message.headers).deaths
            if (death.queue, death.reason) == (event.death_queue, "expired")
        ]
        trips = sum(death.count for death in expired)
        stated = [death.original_expiration for death in expired if trips == 1]
        known = [int(text) for text in stated if text and text.isdecimal() and len(text) <= 10]
        if event.death_queue in scope.ttls_ms:
            known.append(scope.ttls_ms[event.death_queue])
        delay_ms = min(known, default=0)
        return replace(event, attempt=min(trips, LARGEST_NUMBER), requested_delay_ms=delay_ms)
    return event


def _moment(value: object) -> datetime:
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError as error:
        raise EventError(
            f"The time {value!r} does not have the format of RabbitMQ 3.10 and later."
        ) from error
    if moment.tzinfo is None:
        raise EventError(f"The time {value!r} has no time zone.")
    return moment.astimezone(UTC)
