"""Puts the files to import into a folder for the Spark job, under neutral names.

Plain JSON lines and Parquet are linked. Files that Spark cannot number, or would read differently
(gzip, CSV, traces), are written as lines, each at its own place, so that line numbers stay those of
the file.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
import shutil
import zlib
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

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
from analytics.importing.sources import Refused, Source
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


@dataclass(frozen=True)
class TraceScope:
    """The source of a file of RabbitMQ's tracing plugin: the broker's slug, its vhost, and the
    topologies that read it.

    `ttls_ms` are the TTLs of queues by name, as far as known.
    """

    broker: str
    vhost: str
    watched: Sequence[Watched]
    ttls_ms: Mapping[str, int] = field(default_factory=dict)


def event_of_line(line: bytes, scope: TraceScope) -> MessageEvent | None:
    """None for the reading of our own taps. Raises EventError.

    The plugin writes what the firehose copies (rabbit_tracing_consumer.erl; tried on 3.10.8, 4.0.5
    and 4.3.6): properties by name, header values as JSON has them, the payload in base64 and cut at
    the trace's max_payload_bytes without a mark, the time in milliseconds with its zone. So a size
    is at least so much, and the content's hash is not that of a tap.

    Never `caught_up`: the file does not record whether the plugin kept up, and reports show when
    they measure by its clock. The id is a hash of the line, so that equal lines share it.
    """
    values = read_object(line)
    copy = _copy(values)
    trace = read_trace(copy)
    if trace is None:
        raise EventError("The line has no routing keys or properties.")
    if values.get("vhost") != scope.vhost:
        raise EventError(f"The message belongs to the virtual host {values.get('vhost')!r}.")
    return None if is_own(copy) else _event(line, values, trace, scope)


def _event(line: bytes, values: Mapping[str, Any], trace: Trace, scope: TraceScope) -> MessageEvent:
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
        return _out_of_unknown_queue(event, trace, scope)
    return event


def _out_of_unknown_queue(event: MessageEvent, trace: Trace, scope: TraceScope) -> MessageEvent:
    """The delivery of a message that expired in a queue of no topology, with trip and delay.

    The delay is the shorter of the queue's TTL and the expiration that the message had, as in the
    broker. x-death keeps that expiration of the first trip only, and the broker removes it then.
    """
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


def _copy(values: Mapping[str, Any]) -> Message:
    """The firehose's copy that the plugin wrote down."""
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
    return Message("amq.rabbitmq.trace", key, Properties(headers=headers), body)


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
