"""One import: find the files, let Spark make lines of them, move these into the log."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

from django.conf import settings

from analytics import disk, launch, nightly
from analytics.importing.sources import Busy, Format, Refused, Source, find
from analytics.importing.staging import Scope, Staged, stage
from analytics.log import IMPORT_LOCK, LogError, make_folder, sync_folder, take_lock
from analytics.mappings.mapping import QUALITIES, LogMapping
from analytics.models.run import RunState
from analytics.recorder.traces import Watched
from analytics.results.period import EARLIEST_DAY
from topology import snapshots
from topology.definitions import Queue
from topology.models import Broker, Topology
from topology.patterns.pattern import ParamsError
from topology.structure.copies import Phase

# Folder of imports at work. It is in the log, so that a file is moved by its name alone; no reader
# of days looks there.
SCRATCH = "_import"
# File with the days whose figures the lines of imports change, until their runs are requested.
DAYS_FILE = ".import-days.json"
# Room for Spark's work on the lines and for the new files, as a multiple of what is imported.
ROOM = 4
EVERYTHING: frozenset[Phase] = frozenset({"entry", "exit", "publish"})
Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True)
class Problem:
    """A line that is no event: its file, its number from 1 (in Parquet that of the row), why."""

    file: str
    number: int
    why: str


@dataclass(frozen=True)
class ImportResult:
    """How many lines were read (blank ones do not count), and their outcomes.

    Lines are malformed, ignored (no rule of the mapping wants them), or have events; `events` is
    the sum of added and known ones. `problems` are the first malformed lines. `days` are those
    whose figures the new lines change. `quality` says what the log cannot know,
    `skipped` why topologies did not read a trace.
    """

    files: int
    read: int
    added: int
    malformed: int
    problems: Sequence[Problem] = ()
    days: Sequence[date] = field(default_factory=list)
    ignored: int = 0
    events: int = 0
    topologies: Sequence[str] = ()
    quality: Sequence[str] = ()
    skipped: Sequence[str] = ()

    @property
    def known(self) -> int:
        """Events that the log had already, or an earlier line of the same import."""
        return self.events - self.added


def import_files(
    paths: Sequence[Path],
    *,
    given: Format | None = None,
    mapping: LogMapping | None = None,
    scope: Scope | None = None,
    is_dry: bool = False,
    is_reported: bool = True,
    progress: Progress = lambda *_: None,
) -> ImportResult:
    """Import these files and folders; with `is_dry` find out only what that would do.

    `is_reported`: `request_reports` is called afterwards. If it is not, because the import was
    interrupted, a later call requests the runs of the days that have lines of it.

    Raises Refused when nothing was done, LogError when the log cannot be written (then what was
    added stays, and another import completes it), launch.LaunchError when the job fails.
    """
    sources = find(paths, given, mapping)
    needs_broker = [source for source in sources if source.mapping]
    if needs_broker and scope is None:
        title = needs_broker[0].mapping.title if needs_broker[0].mapping else ""
        raise Refused(f"{title}: the log does not name its broker. Name the broker with --broker.")
    if scope and not needs_broker:
        raise Refused(
            "--broker works only with traces and mappings, because events contain their broker."
        )
    log = Path(settings.EVENT_LOG).absolute()
    with take_lock(log, IMPORT_LOCK) as is_ours:
        if not is_ours:
            raise Busy("Another import is running. Try again after it ends.")
        with _scratch(log) as work:
            try:
                # The recorder writes to the same disk: an import must not be what fills it.
                room = disk.read_disk_space(work)
                most_bytes = room.free // (1 + ROOM) if room else None
                pulse = partial(progress, 0, 0)
                staged = stage(sources, work, scope, most_bytes=most_bytes, pulse=pulse)
                needed, room = ROOM * staged.size(work), disk.read_disk_space(work)
                if room and room.free < needed:
                    raise Refused(
                        f"The import needs {needed >> 20} MiB, but the disk has only "
                        f"{room.free >> 20} MiB. Free disk space on the disk of the event log."
                    )
                summary = _run(log, work, staged, progress)
                out, by_day = work / "out", _count_days(work / "out")
                days = {*by_day, *map(date.fromisoformat, summary["entered"])} if by_day else set()
                if not is_dry:
                    if is_reported and days:
                        _note_days(log, days)
                    publish(out, log, uuid4().hex[:12])
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise LogError(
                    f"Delayboard cannot write the event log in {log}: {reason}."
                ) from error
    outcome = _outcome(sources, summary, staged, sum(by_day.values()))
    return replace(outcome, days=sorted(days), skipped=scope.skipped if scope else ())


def read_scope(
    broker: Broker, slugs: Sequence[str] = (), mapping: LogMapping | None = None
) -> Scope:
    """Whose log it is. Traces are read by these topologies of the broker, by default all of them;
    events of another mapping that name no topology are of the first.

    Raises Refused for a slug that is none of them.
    """
    if mapping and mapping.trace is None:
        if len(slugs) > 1:
            raise Refused("A log with a mapping has one --topology at most.")
        return Scope(broker.slug, broker.vhost, topology=slugs[0] if slugs else "")
    rows = list(Topology.objects.filter(broker=broker))
    unknown = sorted(set(slugs) - {row.slug for row in rows})
    if unknown:
        raise Refused(f"{broker.name} has no topology {', '.join(unknown)}.")
    watched: list[Watched] = []
    readable: list[Queue] = []
    skipped: list[str] = []
    for row in rows:
        try:
            if not slugs or row.slug in slugs:
                watched.append(Watched(row.slug, row.pattern, row.parsed, EVERYTHING, -1))
            readable += row.definitions.queues
        except ParamsError as error:
            skipped.append(f"The topology {row.slug} does not read the trace. {error}")
    ttls = _ttls(broker, readable)
    return Scope(broker.slug, broker.vhost, watched, ttls, skipped=skipped)


def _ttls(broker: Broker, known: Sequence[Queue]) -> dict[str, int]:
    """How long queues delay messages, in milliseconds: from the broker, else from its topologies.

    A trace can be read when its broker no longer exists.
    """
    seen = snapshots.poll(broker, patience=snapshots.ACTION_SECONDS).snapshot
    known = [*known, *(seen.definitions.queues if seen else ())]
    waiting = (queue for queue in known if queue.deletes_after is None)
    return {q.name: q.message_ttl_ms for q in waiting if q.message_ttl_ms is not None}


def request_reports(days: Iterable[date] = ()) -> tuple[list[date], list[date]]:
    """Request the figures of these days, and of those that an interrupted import changed; returns
    requested days and those that are computed at present. Raises LogError.
    """
    log, today = Path(settings.EVENT_LOG).absolute(), datetime.now(UTC).date()
    # What runs now requests the days that it noted itself.
    with take_lock(log, IMPORT_LOCK) as nobody_imports:
        noted = _noted_days(log) if nobody_imports else set()
        wanted = sorted(day for day in {*days, *noted} if EARLIEST_DAY <= day <= today)
        runs = {day: nightly.request_run(day) for day in wanted}
        busy = [day for day, run in runs.items() if run.state == RunState.RUNNING]
        # A run that goes on may have read the log before: the day is requested again after it.
        if noted and busy:
            _write_days(log, busy)
        elif noted:
            (log / DAYS_FILE).unlink()
    return [day for day in runs if day not in busy], busy


def has_noted_days() -> bool:
    """Whether an import changed days whose runs nobody has requested, or goes on."""
    return (Path(settings.EVENT_LOG) / DAYS_FILE).exists()


def _noted_days(log: Path) -> set[date]:
    try:
        return set(map(date.fromisoformat, json.loads((log / DAYS_FILE).read_text())))
    except FileNotFoundError:
        return set()


def _note_days(log: Path, days: Iterable[date]) -> None:
    """Durably, before the first line is in the log. Raises OSError."""
    _write_days(log, {*days, *_noted_days(log)})


def _write_days(log: Path, days: Iterable[date]) -> None:
    text = json.dumps(sorted(day.isoformat() for day in days))
    aside = log / f"{DAYS_FILE}.new"
    with aside.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file)
    aside.rename(log / DAYS_FILE)
    sync_folder(log)


@contextmanager
def _scratch(log: Path) -> Iterator[Path]:
    """A folder of this import's own: a killed one's JVM may go on writing for a moment."""
    shutil.rmtree(log / SCRATCH, ignore_errors=True)
    try:
        with launch.scratch(log / SCRATCH / uuid4().hex[:12]) as work:
            yield work
    finally:
        with suppress(OSError):
            (log / SCRATCH).rmdir()


def _run(log: Path, work: Path, staged: Staged, progress: Progress) -> Mapping[str, Any]:
    try:
        return launch.run_import(log, work, pulse=progress)
    except launch.NoData as error:
        place, _, why = str(error).partition(" ")
        raise Refused(f"{staged.name_of(place)} {why}") from error


def _count_days(out: Path) -> dict[date, int]:
    """How many lines `publish` adds, by day."""
    found: Counter[date] = Counter()
    for path in out.glob("date=*/hour=*/*.txt"):
        with path.open("rb") as lines:
            found[date.fromisoformat(path.parts[-3].removeprefix("date="))] += sum(1 for _ in lines)
    return dict(found)


def _outcome(
    sources: Sequence[Source],
    summary: Mapping[str, Any],
    staged: Staged,
    added: int,
) -> ImportResult:
    problems = [
        Problem(staged.name_of(problem["file"]), problem["number"], problem["why"])
        for problem in summary["problems"]
    ]
    stated = {name for source in sources if source.mapping for name in source.mapping.quality}
    stated |= set(summary["quality"])
    return ImportResult(
        files=len(sources),
        read=summary["read"],
        added=added,
        malformed=summary["malformed"],
        problems=problems,
        ignored=summary["ignored"],
        events=summary["events"],
        topologies=summary["topologies"],
        quality=[name for name in QUALITIES if name in stated],
    )


def publish(out: Path, log: Path, name: str) -> None:
    """Move `out/date=…/hour=…/*.txt` to the hours of the log, oldest first.

    Both lie on one file system. A crash in between leaves some of the hours in the log and none
    of the others. Raises OSError.
    """
    for hour in sorted(out.glob("date=*/hour=*")):
        folder = log / hour.parent.name / hour.name
        make_folder(folder)
        for number, part in enumerate(sorted(hour.glob("*.txt")), start=1):
            part.chmod(0o640)
            with part.open("rb") as file:
                os.fsync(file)
            part.rename(folder / f"import.{name}-{number}.jsonl")
        sync_folder(folder)
