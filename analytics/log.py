"""The event log: JSON lines in folders by UTC date and hour, on disk before they count.

`date=2026-11-20/hour=07/<recorder>-<number>.jsonl`; each recorder writes files of its own, so that
several can write at once. A crash leaves at most one incomplete last line.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from analytics.events import EventError, MessageEvent, decode, encode

ROLL_BYTES = 64 * 1024 * 1024
_HOUR_OF = itemgetter(0)
# Names of files that our own recorders write; the others were imported.
RECORDED = re.compile(r"(tap|firehose|facts)\..*\.jsonl")
# Time for which an hour that is over may still be written: facts, and batches at the turn of the
# hour.
STILL_WRITTEN = timedelta(hours=1)
# Lock that an import holds; who deletes waits for it.
IMPORT_LOCK = "import"
NAME_FILE = ".name"
MOST_PROCESSES = 100


class LogError(Exception):
    """The log cannot be written or read; the message says why in one sentence."""


def _unwritable(folder: Path, error: OSError) -> LogError:
    reason = (error.strerror or str(error)).lower()
    return LogError(
        f"Delayboard cannot write the event log in {folder}: {reason}. The copies wait in "
        "the taps until the log is writable or the taps are full."
    )


def _hour_and_line(event: MessageEvent) -> tuple[tuple[date, int], bytes]:
    at = event.recorded_at
    at = at if at.tzinfo is UTC else at.astimezone(UTC)
    return (at.date(), at.hour), encode(event) + b"\n"


def hour_folder(log: Path, moment: datetime) -> Path:
    at = moment.astimezone(UTC)
    return _hour_folder(log, at.date(), at.hour)


# The index asks ten times a second.
@lru_cache(maxsize=64)
def _hour_folder(log: Path, day: date, hour: int) -> Path:
    return day_folder(log, day) / f"hour={hour:02}"


class EventLog:
    """The log under `folder` for one recorder; used by one thread only.

    `recorder` names its files. A recorder that returns under the same name continues its newest
    file, after it ends a line that a crash left incomplete.
    """

    def __init__(self, folder: Path, recorder: str, *, roll_bytes: int = ROLL_BYTES) -> None:
        self._folder = folder
        self._recorder = re.sub(r"[^A-Za-z0-9_.-]", "_", recorder)
        self._roll_bytes = roll_bytes
        self._hour: Path | None = None
        self._file: int | None = None
        self._size = 0

    def append(self, events: Iterable[MessageEvent]) -> None:
        """Write the events; when it returns, they are on disk. Raises LogError.

        After an error the first lines of the batch may remain, on disk and whole, as after a
        crash: who reads along may have read them.
        """
        try:
            # Encoded one by one as they are made: a list of all would not stay in the cache.
            for (day, hour), lines in groupby(map(_hour_and_line, events), key=_HOUR_OF):
                folder = day_folder(self._folder, day) / f"hour={hour:02}"
                self._write(folder, b"".join([line for _, line in lines]))
        except OSError as error:
            self.close()
            raise _unwritable(self._folder, error) from error

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = self._hour = None

    def _write(self, hour: Path, lines: bytes) -> None:
        if hour != self._hour or self._size >= self._roll_bytes:
            self.close()
        file = self._open(hour) if self._file is None else self._file
        written = 0
        try:
            while written < len(lines):
                written += os.write(file, lines[written:])
        except OSError:
            # Its whole lines may have been read by now: they stay, as after a crash.
            whole = lines.rfind(b"\n", 0, written) + 1
            os.ftruncate(file, self._size + whole)
            self._sync(file, whole)
            raise
        self._sync(file, written)

    def _sync(self, file: int, written: int) -> None:
        try:
            os.fsync(file)
        except OSError:
            os.ftruncate(file, self._size)
            raise
        self._size += written

    def _open(self, hour: Path) -> int:
        make_folder(hour)
        number = max(self._numbers(hour), default=1)
        path = self._path(hour, number)
        if path.exists() and path.stat().st_size >= self._roll_bytes:
            path = self._path(hour, number + 1)
        is_new = not path.exists()
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o640)
        self._hour = hour
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")
            size += 1
        self._size = size
        if is_new:
            sync_folder(hour)
        return self._file

    def _path(self, hour: Path, number: int) -> Path:
        return hour / f"{self._recorder}-{number}.jsonl"

    def _numbers(self, hour: Path) -> list[int]:
        own = re.compile(re.escape(self._recorder) + r"-(\d+)\.jsonl")
        return [int(found[1]) for path in hour.iterdir() if (found := own.fullmatch(path.name))]


@contextmanager
def take_lock(folder: Path, name: str) -> Iterator[bool]:
    """Whether the lock of this name in the log is ours for the length of the block.

    For the files of this log, which only this machine has; it ends with its process at once. What
    one process does for the whole database has a row (topology/work.py). Raises LogError.
    """
    file = _open_lock(folder, name)
    try:
        yield _try_lock(file)
    finally:
        os.close(file)


def _open_lock(folder: Path, name: str) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / f".{name}.lock", os.O_RDWR | os.O_CREAT, 0o640)
    except OSError as error:
        raise _unwritable(folder, error) from error


def _try_lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def name_of(folder: Path) -> str:
    """The name of this log among those of several hosts, made once. Raises LogError.

    It stays with the folder: a host's name may change, and two hosts may have the same.
    """
    file = folder / NAME_FILE
    try:
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:60]
            fresh = folder / f"{NAME_FILE}.{os.getpid()}.{secrets.token_hex(4)}"
            fresh.write_text(f"{host}-{secrets.token_hex(2)}\n")
            with suppress(FileExistsError):
                os.link(fresh, file)
            fresh.unlink()
            sync_folder(folder)
        return file.read_text().strip()
    except OSError as error:
        raise _unwritable(folder, error) from error


class Slot:
    """The name of one process among those of a log, locked for as long as the process lives.

    The first process of a log has the log's own name. So who gets a name knows that the process
    that had it before has ended. Raises LogError.
    """

    def __init__(self, folder: Path) -> None:
        name = name_of(folder)
        for number in range(1, MOST_PROCESSES):
            file = _open_lock(folder, f"process-{number}")
            if _try_lock(file):
                self._file = file
                self.log = name
                self.name = name if number == 1 else f"{name}/{number}"
                return
            os.close(file)
        raise LogError(f"{MOST_PROCESSES} processes use the event log in {folder}. Stop some.")

    def close(self) -> None:
        os.close(self._file)


def lines_from(path: Path, position: int, limit_bytes: int) -> tuple[list[bytes], int]:
    """The complete lines of a file from there on, about so many bytes, and where they end.

    An incomplete last line is left for the next call. Raises LogError.
    """
    try:
        with path.open("rb") as file:
            file.seek(position)
            piece = file.read(limit_bytes)
            if piece and not piece.endswith(b"\n"):
                rest = file.readline() if len(piece) == limit_bytes else b""
                whole = piece + rest
                piece = whole[: whole.rfind(b"\n") + 1]
    except OSError as error:
        raise LogError(
            f"Delayboard cannot read {path} of the event log: {error.strerror}."
        ) from error
    return piece.split(b"\n")[:-1], position + len(piece)


def readable(lines: Iterable[bytes]) -> Iterator[MessageEvent]:
    """The events of these lines; invalid lines are skipped."""
    for line in lines:
        with suppress(EventError):
            yield decode(line)


def day_folder(folder: Path, day: date) -> Path:
    return folder / f"date={day.isoformat()}"


def day_files(folder: Path, day: date) -> list[Path]:
    """The day's files that hold anything, in a stable order."""
    found = day_folder(folder, day).glob("hour=*/*.jsonl")
    return sorted(path for path in found if path.stat().st_size)


def day_folders(folder: Path) -> Iterator[tuple[date, Path]]:
    """The days of the log and their folders, oldest first."""
    for path in sorted(folder.glob("date=*")):
        try:
            yield date.fromisoformat(path.name.removeprefix("date=")), path
        except ValueError:
            continue


def written_hours(folder: Path, now: datetime) -> tuple[Path, Path]:
    """The folders of the two hours that recorders may write to."""
    return hour_folder(folder, now - STILL_WRITTEN), hour_folder(folder, now)


def make_folder(folder: Path) -> None:
    """With its parents, all on disk when it returns."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
