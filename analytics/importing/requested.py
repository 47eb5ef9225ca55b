"""Imports of uploaded files: stored, read at their begin, requested, and done by the worker."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any
from uuid import uuid4

import orjson
from django.conf import settings
from django.db import transaction
from django.utils import timezone

from analytics import launch
from analytics.importing.import_files import (
    ImportResult,
    has_noted_days,
    import_files,
    read_scope,
    request_reports,
)
from analytics.importing.sources import HEAD_BYTES, Busy, Refused, Source, find, propose, read_head
from analytics.importing.staging import PROBLEM_MARK, NoTable, is_document, read_lines
from analytics.log import LogError, make_folder, name_of
from analytics.mappings.mapping import LogMapping, SlowPattern, load_shipped, parse
from analytics.mappings.propose import Choices, guess
from analytics.mappings.values import RecordError
from analytics.models import LogImport
from analytics.models.imports import UPLOADS
from topology import audit, work
from topology.models import Broker, Work

KIND = "import_log"
PREVIEWED = 20
LARGEST_PREVIEWED = 16 * 1024 * 1024
PULSE_SECONDS = 0.5


def store_upload(
    user: Any,
    name: str,
    chunks: Iterable[bytes],
    *,
    mapping: LogMapping | None = None,
    broker: Broker | None = None,
    topology: str = "",
) -> LogImport:
    """Write an upload to the disk of the event log, with a proposed mapping unless one is given.

    Raises LogError.
    """
    log = Path(settings.EVENT_LOG).absolute()
    make_folder(log / UPLOADS)
    suffixes = "".join(Path(name).suffixes[-2:])[-20:]
    path = log / UPLOADS / f"{uuid4().hex}{suffixes}"
    size = 0
    try:
        with path.open("xb") as file:
            for chunk in chunks:
                size += file.write(chunk)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise LogError(f"Delayboard cannot store the file: {error.strerror}.") from error
    row = LogImport(file_name=name[:255], bytes=size, path=str(path), host=name_of(log))
    row.created_by, row.broker, row.topology = user, broker, topology[:255]
    try:
        if mapping := mapping or proposed_mapping(path, name):
            row.mapping_name, row.mapping_text = mapping.name, mapping.text
        row.save()
    except BaseException:
        # Without a row no page would list it.
        path.unlink(missing_ok=True)
        raise
    return row


def proposed_mapping(path: Path, file_name: str) -> LogMapping | None:
    """The mapping of a file by what it begins with: of its source, a shipped or a guessed one; None
    for events, and for what cannot be read.
    """
    try:
        (source,) = find([path])
        return source.mapping
    except Refused:
        pass
    try:
        head = read_head(path)
    except (Refused, OSError):
        return None
    first = head.lstrip()[:1]
    looks = "json" if first in (b"{", b"[") else None
    if found := propose(head, "json" if looks else None):
        return found
    choices = propose_choices(path)
    return parse(choices.to_toml(file_name), "") if choices else None


def propose_choices(path: Path) -> Choices | None:
    """What a guessed mapping says; None where the file is neither JSON nor a table with a time."""
    try:
        form = "json" if read_head(path).lstrip()[:1] in (b"{", b"[") else "csv"
        plain = load_shipped("delay-csv" if form == "csv" else "spring-ecs")
        records = first_records(path, plain)
    except (Refused, OSError):
        return None
    choices = guess([record for record in records if isinstance(record, dict)], plain.format)
    return choices if choices.time else None


def first_records(path: Path, mapping: LogMapping) -> list[dict[str, Any] | str]:
    """The first records, or why a line is none; nothing of Parquet and of large documents, which
    are read whole. Raises Refused.
    """
    found: list[dict[str, Any] | str] = []
    (source,) = find([path], mapping=mapping)
    if source.format == "parquet":
        return []
    for line in _first_lines(source):
        if line.startswith(PROBLEM_MARK):
            found.append(line[1:].decode(errors="replace"))
        elif line:
            try:
                values = orjson.loads(line)
                found.append(values if isinstance(values, dict) else "The line is no object.")
            except orjson.JSONDecodeError as error:
                found.append(f"The line is not JSON: {error}.")
        if len(found) == PREVIEWED:
            break
    return found


def _first_lines(source: Source) -> Iterable[bytes]:
    """The first lines of the file, however much it unpacks to."""
    most = LARGEST_PREVIEWED if is_document(source) else HEAD_BYTES
    try:
        with source.open() as file:
            head, rest = file.read(most), file.read(1)
        if rest and is_document(source):
            return
        if rest and b"\n" in head:
            head = head[: head.rindex(b"\n") + 1]
        yield from read_lines(source, BytesIO(head))
    except (NoTable, EOFError, UnicodeDecodeError) as error:
        raise Refused(f"The file {error}.") from error
    except (zlib.error, gzip.BadGzipFile) as error:
        raise Refused("The file is not complete gzip. Export it again.") from error
    except SlowPattern as error:
        raise Refused(str(error)) from error


def preview(row: LogImport, mapping: LogMapping) -> list[tuple[str, list[Any], str]]:
    """The first records as text, with their events or why there are none. Raises Refused."""
    defaults = {"broker": row.broker.slug if row.broker else "?", "topology": row.topology or "?"}
    shown: list[tuple[str, list[Any], str]] = []
    for record in first_records(Path(row.path), mapping):
        if isinstance(record, str):
            shown.append(("", [], record))
            continue
        text = orjson.dumps(record).decode()
        try:
            events = [] if mapping.trace is not None else mapping.read(record, defaults)
            shown.append((text, events, ""))
        except RecordError as error:
            shown.append((text, [], str(error)))
        except SlowPattern as error:
            raise Refused(str(error)) from error
    return shown


def request_import(user: Any, row: LogImport, *, is_dry: bool) -> Work:
    """Let the worker of the file's host do a dry run or the import. Raises Refused."""
    action = "import dry run requested" if is_dry else "import requested"
    with transaction.atomic():
        stored = LogImport.objects.select_for_update().get(pk=row.pk)
        if stored.is_at_work:
            raise Refused("A dry run or an import of this file is running. Wait for its end.")
        if not stored.path:
            raise Refused("The file was deleted. Upload it again.")
        if row.mapping_text and row.broker is None:
            raise Refused("Choose the broker of the log.")
        row.work = work.create(KIND, row.pk, broker=None, user=user)
        row.is_dry, row.result = is_dry, {}
        row.save(update_fields=["work", "is_dry", "result"])
        audit.record(user, action, broker=row.broker, what=row.file_name)
    return row.work


def delete_upload(row: LogImport) -> None:
    """Delete the file; its row and result stay. The caller knows that no work reads it."""
    if row.path:
        Path(row.path).unlink(missing_ok=True)
        row.path = ""
        row.save(update_fields=["path"])


def claim_own(owner: str) -> Work | None:
    """The oldest import whose file is on this host. First the runs of what an interrupted import
    has added are requested.
    """
    if has_noted_days():
        request_reports()
    host = name_of(Path(settings.EVENT_LOG))
    own = LogImport.objects.filter(host=host).values("pk")
    rows = Work.objects.filter(kind=KIND, subject__in=own, ended_at=None).order_by("pk")[:10]
    return next(filter(None, (work.claim_this(row, owner) for row in rows)), None)


def attend(claimed: Work, *, stop: Event, alive: Callable[[], None]) -> None:
    """Do a dry run or an import. A killed one is done again: its events are added once."""
    row = LogImport.objects.select_related("broker").get(pk=claimed.subject)
    if not row.path:
        if row.is_imported and not row.is_dry:
            return  # Only its end was not stored.
        raise work.Failed("The file was deleted before the import. Upload it again.")
    lease = work.lease_of(claimed)
    pulsed_at = float("-inf")

    def pulse(done: int, total: int) -> None:
        nonlocal pulsed_at
        if stop.is_set():
            raise work.Ending
        if monotonic() - pulsed_at > PULSE_SECONDS:
            pulsed_at = monotonic()
            lease.pulse(done, total)
            alive()

    try:
        mapping = parse(row.mapping_text, row.mapping_name) if row.mapping_text else None
        scope = None
        if row.broker and mapping:
            slugs = [row.topology] if row.topology else []
            scope = read_scope(row.broker, slugs, mapping)
        paths = [Path(row.path)]
        outcome = import_files(
            paths, mapping=mapping, scope=scope, is_dry=row.is_dry, progress=pulse
        )
    except Busy as error:
        raise work.Later(str(error)) from error
    except (Refused, LogError, launch.LaunchError, ValueError) as error:
        raise work.Failed(str(error).replace(row.path, row.file_name)) from error
    store_result(row, outcome)
    if not row.is_dry:
        request_reports(outcome.days)
        delete_upload(row)


def store_result(row: LogImport, outcome: ImportResult) -> None:
    """Keep what came of an import, with what its log cannot know."""
    values = asdict(outcome)
    values["days"] = [day.isoformat() for day in outcome.days]
    values["known"] = outcome.known
    for problem in values["problems"]:
        problem["file"] = row.file_name
    row.result = values
    row.is_imported = row.is_imported or not row.is_dry
    row.save(update_fields=["result", "is_imported"] if row.pk else None)


def record_command(
    names: Iterable[Path], broker: Broker | None, mapping: LogMapping | None, outcome: ImportResult
) -> None:
    """Keep what the command imported, so that reports say what the log cannot know."""
    row = LogImport(
        file_name=", ".join(path.name for path in names)[:255],
        broker=broker,
        mapping_name=mapping.name if mapping else "",
        mapping_text=mapping.text if mapping else "",
        created_at=timezone.now(),
    )
    store_result(row, outcome)
