"""Which hours of the event log are Parquet already, and what is to be read of a day.

Beside the lines of a day lies `compacted.json`: the folder with its Parquet, and of each hour in it
the files of lines with their sizes. It is replaced as a whole, after Spark has written that folder
as a whole. Nobody reads a folder that it does not name, so a kill leaves nothing that is half
read. An hour whose files have other sizes has late lines: it is read as lines again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from analytics.log import day_files, day_folder, make_folder, sync_folder

MANIFEST = "compacted.json"
# Folder for manifests of days whose lines are older than their retention: the next compaction
# deletes the Parquet, wherever it lies.
EXPIRED = "_expired"
# How much smaller Parquet is than its lines, until a day was compacted. Generated lines, whose ids
# repeat, shrink to a fortieth; random ids and bodies shrink less.
USUAL_SHRINKAGE = 20.0
# Bytes of lines from which a ratio is learned: with fewer, the Parquet is mostly its footers.
LEARNED_FROM = 256 * 10**6
# Time after the end of an hour from which on only an import or a late batch writes to it.
FINISHED_AFTER = timedelta(minutes=5)
# Hour ("07") -> name of the file -> its bytes.
Sizes = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Compacted:
    """A day's Parquet, what it was made of, and its bytes; 0 is unknown."""

    url: str
    hours: Sizes
    parquet_bytes: int = 0


@dataclass(frozen=True)
class DayInput:
    """A day: these hours of the folder `url`, and these files of lines."""

    day: date
    url: str
    hours: tuple[str, ...]
    is_whole: bool
    files: tuple[Path, ...]

    @property
    def is_empty(self) -> bool:
        return not self.hours and not self.files


def read(log: Path, day: date) -> Compacted | None:
    """What was compacted of the day; None if nothing was."""
    try:
        return Compacted(**json.loads((day_folder(log, day) / MANIFEST).read_bytes()))
    except FileNotFoundError:
        return None


def write(log: Path, day: date, compacted: Compacted) -> None:
    """Replace the compacted day durably."""
    write_manifest(log, day, json.dumps(asdict(compacted)))


def read_manifest(log: Path, day: date) -> str:
    """The manifest as `write_manifest` takes it; "" if nothing was compacted."""
    try:
        return (day_folder(log, day) / MANIFEST).read_text()
    except FileNotFoundError:
        return ""


def write_manifest(log: Path, day: date, manifest: str) -> None:
    """Replace the compacted day durably, unless it is this one."""
    if manifest == read_manifest(log, day):
        return
    folder = day_folder(log, day)
    make_folder(folder)
    aside = folder / f".{MANIFEST}.{os.getpid()}"
    with aside.open("w") as file:
        file.write(manifest)
        file.flush()
        os.fsync(file.fileno())
    aside.rename(folder / MANIFEST)
    sync_folder(folder)


def shrinkage(log: Path) -> float:
    """How much smaller Parquet was than its lines on the newest compacted day of many lines."""
    for manifest in sorted(log.glob(f"date=*/{MANIFEST}"), reverse=True):
        with suppress(FileNotFoundError):
            found = Compacted(**json.loads(manifest.read_bytes()))
            lines = line_bytes(found.hours)
            if found.parquet_bytes and lines >= LEARNED_FROM:
                return lines / found.parquet_bytes
    return USUAL_SHRINKAGE


def input_of(log: Path, day: date, hours: Sizes | None = None) -> DayInput:
    """What is to be read of a day, or of these hours of it, as it lies there now."""
    there = line_sizes(log, day) if hours is None else hours
    compacted = read(log, day)
    known = compacted.hours if compacted else {}

    def is_deleted(hour: str) -> bool:
        return any(there[hour].get(name, 0) < size for name, size in known[hour].items())

    # An hour whose lines were deleted exists in Parquet only; lines that came since are added.
    as_parquet = [
        hour for hour in known if there.get(hour, known[hour]) == known[hour] or is_deleted(hour)
    ]
    folder = day_folder(log, day)
    files = [
        folder / f"hour={hour}" / name
        for hour, sizes in sorted(there.items())
        for name in sorted(sizes)
        if hour not in as_parquet or known[hour].get(name) != sizes[name]
    ]
    return DayInput(
        day,
        compacted.url if compacted and as_parquet else "",
        tuple(sorted(as_parquet)),
        len(as_parquet) == len(known),
        tuple(files),
    )


def line_sizes(log: Path, day: date) -> dict[str, dict[str, int]]:
    """The files of the day that hold anything, by hour."""
    sizes: dict[str, dict[str, int]] = {}
    for path in day_files(log, day):
        hour = path.parent.name.removeprefix("hour=")
        sizes.setdefault(hour, {})[path.name] = path.stat().st_size
    return sizes


def line_bytes(sizes: Sizes) -> int:
    return sum(size for files in sizes.values() for size in files.values())


def day_bytes(log: Path, day: date) -> int:
    """The bytes of the day's lines, of deleted ones too whose hours are Parquet."""
    before = read(log, day)
    return line_bytes({**(before.hours if before else {}), **line_sizes(log, day)})


def finished(log: Path, day: date, now: datetime) -> dict[str, dict[str, int]]:
    """The hours of the day that are over, with their files."""
    begin = datetime.combine(day, time(), UTC)
    return {
        hour: sizes
        for hour, sizes in line_sizes(log, day).items()
        if hour.isdigit() and begin + timedelta(hours=int(hour) + 1) + FINISHED_AFTER <= now
    }


def is_due(log: Path, day: date, now: datetime) -> bool:
    """Whether a finished hour of the day is not compacted as it is, or something has expired."""
    return is_late(log, day, finished(log, day, now)) or bool(expired(log))


def is_late(log: Path, day: date, hours: Sizes) -> bool:
    """Whether one of these hours of the day is not compacted as it is."""
    compacted = read(log, day)
    known = compacted.hours if compacted else {}
    return any(known.get(hour) != sizes for hour, sizes in hours.items())


def expire(log: Path, folder: Path) -> None:
    """Remember that the Parquet of a day is to be deleted, before the folder of its lines is."""
    manifest = folder / MANIFEST
    if manifest.exists():
        make_folder(log / EXPIRED)
        shutil.copyfile(manifest, log / EXPIRED / f"{folder.name}.json")
        sync_folder(log / EXPIRED)


def expired(log: Path) -> dict[Path, str]:
    """The remembered manifests, and where the Parquet of each lies."""
    found = sorted((log / EXPIRED).glob("*.json"))
    return {path: Compacted(**json.loads(path.read_bytes())).url for path in found}
