"""The log of all hosts: each moves its finished hours to LOG_URL, whoever computes a day reads all.

A host sends what an hour has got since the last time as one part, which never changes: first the
object, then its row. A kill between them leaves an object that nobody reads, and the part is sent
again. So each line is in the part of one row, and a reader that has those has each line once.
"""

from __future__ import annotations

import gzip
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from django.conf import settings
from django.db.models import Max

from analytics import compacted
from analytics.log import STILL_WRITTEN, LogError, day_folders, make_folder, name_of
from analytics.models import CompactedDay, LogHost, SentPart
from analytics.storage import open_storage

# Folders in the log of this host; their names keep every reader of days out.
MIRROR, OUTBOX = "_all_hosts", "_outbox"
LINES = "lines"
PIECE_BYTES = 1024 * 1024
# Fast: the lines of an hour shrink to a tenth, whatever the level.
GZIP_LEVEL = 1


def log_for_runs() -> Path:
    """The log that nightly runs read: this host's, or with LOG_URL the copy of all hosts'."""
    log: Path = settings.EVENT_LOG
    return log / MIRROR if settings.SHARED_LOG_URL else log


@dataclass(frozen=True)
class Unsent:
    """An hour of this host with lines that are not at LOG_URL: the files, until which byte."""

    day: date
    hour: int
    number: int
    before: Mapping[str, int]
    files: Mapping[str, int]

    @property
    def begin(self) -> datetime:
        return datetime.combine(self.day, time(self.hour), UTC)

    def is_finished(self, now: datetime) -> bool:
        return self.begin + timedelta(hours=1) + compacted.FINISHED_AFTER <= now

    def is_over(self, now: datetime) -> bool:
        """Whether nobody writes to it any more, not even what comes late."""
        return self.begin + timedelta(hours=1) + 2 * STILL_WRITTEN <= now

    @property
    def bytes(self) -> int:
        return sum(size - self.before.get(name, 0) for name, size in self.files.items())


def find_unsent(log: Path, since: date) -> list[Unsent]:
    """The hours from that day on with lines that are not sent, unfinished ones too."""
    host, found = name_of(log), []
    sent: dict[tuple[date, int], tuple[int, dict[str, int]]] = {}
    rows = SentPart.objects.filter(host=host, day__gte=since).order_by("number")
    for day, hour, number, files in rows.values_list("day", "hour", "number", "files"):
        _, before = sent.get((day, hour), (0, {}))
        sent[day, hour] = (number, before | files)
    for day, _ in day_folders(log):
        for name, sizes in sorted(compacted.line_sizes(log, day).items()) if day >= since else ():
            number, before = sent.get((day, int(name)), (0, {}))
            more = {file: size for file, size in sizes.items() if size > before.get(file, 0)}
            if more:
                found.append(Unsent(day, int(name), number + 1, before, more))
    return found


def send(log: Path, unsent: Unsent, *, is_over: bool = False) -> None:
    """Send what the hour has got; with `is_over` a torn last line too.

    Raises StorageError and LogError.
    """
    part = SentPart(host=name_of(log), day=unsent.day, hour=unsent.hour, number=unsent.number)
    part.uid = secrets.token_hex(4)
    make_folder(log / OUTBOX)
    packed = log / OUTBOX / f"{os.getpid()}.gz"
    folder = log / part.path.rpartition("/")[0]
    part.bytes, part.files = 0, {}
    try:
        with gzip.open(packed, "wb", GZIP_LEVEL) as out:
            for name, until in sorted(unsent.files.items()):
                begin = unsent.before.get(name, 0)
                end = begin
                for piece in _pieces(folder / name, begin, until, is_over=is_over):
                    out.write(piece)
                    part.bytes += len(piece)
                    end += len(piece)
                part.files[name] = min(end, until)
        if not part.bytes:
            return
        open_storage(settings.SHARED_LOG_URL).put(packed, f"{LINES}/{part.path}.gz")
    except FileNotFoundError:
        # A day that is past its retention was deleted at this moment.
        return
    finally:
        packed.unlink(missing_ok=True)
    part.sent_at = datetime.now(UTC)
    part.save()


def _pieces(path: Path, begin: int, until: int, *, is_over: bool) -> Iterator[bytes]:
    """The whole lines of a file; a torn one at the end too, ended, once nobody writes any more."""
    rest = b""
    with path.open("rb") as file:
        file.seek(begin)
        left = until - begin
        while left and (piece := file.read(min(left, PIECE_BYTES))):
            left -= len(piece)
            whole, separator, rest = (rest + piece).rpartition(b"\n")
            if separator:
                yield whole + separator
    if rest and is_over:
        yield rest + b"\n"


def fetch(first: date) -> None:
    """Bring the copy of all hosts' log up to their parts, from this day on.

    Raises StorageError and LogError. Nothing to do without LOG_URL.
    """
    if not settings.SHARED_LOG_URL:
        return
    log, storage = log_for_runs(), open_storage(settings.SHARED_LOG_URL)
    for part in SentPart.objects.filter(day__gte=first):
        target = log / part.path
        if target.exists() and target.stat().st_size == part.bytes:
            continue
        make_folder(target.parent)
        packed, aside = (target.with_suffix(f".{os.getpid()}.{end}") for end in ("gz", "part"))
        try:
            storage.get(f"{LINES}/{part.path}.gz", packed)
            with gzip.open(packed, "rb") as given, aside.open("wb") as out:
                shutil.copyfileobj(given, out)
            if aside.stat().st_size != part.bytes:
                raise LogError(
                    f"{settings.SHARED_LOG_URL}/{LINES}/{part.path}.gz has "
                    f"{aside.stat().st_size} bytes of lines, but {part.host} sent {part.bytes}. "
                    "Restore the file, or let that host send the hour again."
                )
            aside.rename(target)
        except (EOFError, gzip.BadGzipFile) as error:
            raise LogError(f"{LINES}/{part.path}.gz at LOG_URL is damaged: {error}.") from error
        finally:
            packed.unlink(missing_ok=True)
            aside.unlink(missing_ok=True)


@contextmanager
def computing(first: date) -> Iterator[None]:
    """Have the lines and the Parquet of this day and those after it, and let others know after.

    Raises StorageError and LogError.
    """
    fetch(first)
    log = log_for_runs()
    # What only this machine has is of no use to others.
    is_shared = bool(settings.SHARED_LOG_URL) and settings.PARQUET_URL == settings.SHARED_LOG_URL
    known = dict(CompactedDay.objects.filter(day__gte=first).values_list("day", "manifest"))
    if is_shared:
        for day, manifest in known.items():
            compacted.write_manifest(log, day, manifest)
    try:
        yield
    finally:
        for day, _ in day_folders(log) if is_shared else ():
            manifest = compacted.read_manifest(log, day) if day >= first else ""
            if manifest and manifest != known.get(day):
                CompactedDay.objects.update_or_create(day=day, defaults={"manifest": manifest})


def last_sent(since: date) -> dict[date, datetime]:
    """When the last part of each day was sent, from that day on."""
    rows = SentPart.objects.filter(day__gte=since).order_by().values_list("day")
    return dict(rows.annotate(Max("sent_at")))


def report_unsent(log: Path, unsent: list[Unsent]) -> None:
    """Let the pages show what other hosts cannot read yet."""
    LogHost.objects.filter(name=name_of(log)).update(
        unsent_since=min((one.begin for one in unsent), default=None),
        unsent_bytes=sum(one.bytes for one in unsent),
    )


def delete_sent(before: date, alive: Callable[[], None]) -> int:
    """Delete the parts of days before this one, of all hosts; how many. Raises StorageError."""
    if not settings.SHARED_LOG_URL:
        return 0
    storage, total = open_storage(settings.SHARED_LOG_URL), 0
    for part in SentPart.objects.filter(day__lt=before):
        storage.delete(f"{LINES}/{part.path}.gz")
        part.delete()
        total += 1
        alive()
    CompactedDay.objects.filter(day__lt=before).delete()
    return total
