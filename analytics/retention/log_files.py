"""The rule for the files of the event log: whole days."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from django.conf import settings

from analytics import compacted, shared_log
from analytics.log import IMPORT_LOCK, RECORDED, LogError, day_folders, name_of, take_lock
from analytics.models import LogHost, LogPosition, Run
from analytics.models.run import RunState
from analytics.retention.rules import BATCH, Alive, Holding, Rule, delete_batches
from analytics.storage import StorageError

# Time for which the schedule requests runs that are missing.
RUN_WITHIN = timedelta(days=8)
DELETING = ".deleting."
# Time for which a host keeps lines that it has sent to LOG_URL.
MOVED_AFTER = timedelta(days=2)


@dataclass(frozen=True)
class LogRule(Rule):
    """A day goes out of sight at once, so that nobody reads half of it, and then file by file."""

    def delete_expired(self, now: datetime, alive: Alive) -> int:
        """Returns how many files. Raises LogError when they cannot be deleted."""
        log = settings.EVENT_LOG
        try:
            # An import may be putting something into a day that was about to go.
            with take_lock(log, IMPORT_LOCK) as nobody_imports:
                expired = _expired_days(log, now) if nobody_imports else []
                for folder in [*expired, *_expired_of_all_hosts(now)]:
                    folder.rename(folder.with_name(DELETING + folder.name))
            total = 0
            for own in {log, shared_log.log_for_runs()}:
                for folder in sorted(own.glob(f"{DELETING}date=*")):
                    total += sum(1 for path in folder.rglob("*.jsonl"))
                    compacted.expire(own, folder)
                    shutil.rmtree(folder)
                    alive()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise LogError(
                f"Delayboard cannot delete old days of the event log: {reason}."
            ) from error
        # Of deleted files; the file is deleted first, so that it is never read a second time.
        there = {folder.name for _, folder in day_folders(log)}
        today = f"date={now.astimezone(UTC).date()}"
        name = name_of(log)
        # Those of an earlier version have no name: only a single host knows them as its own.
        names = [name] if LogHost.objects.exclude(name=name).exists() else ["", name]
        rows = LogPosition.objects.filter(path__lt=today, log__in=names)
        paths = rows.values_list("pk", "path")
        deleted = [key for key, path in paths if path.partition("/")[0] not in there]
        batches = (deleted[start : start + BATCH] for start in range(0, len(deleted), BATCH))
        delete_batches(batches, lambda keys: rows.filter(pk__in=keys).delete()[0], alive)
        if first := _first_kept_day(now):
            try:
                total += shared_log.delete_sent(first, alive)
            except StorageError as error:
                raise LogError(str(error)) from error
        return total

    def holding(self, now: datetime) -> Holding:
        folders = day_folders(settings.EVENT_LOG)
        sizes = {day: [path.stat().st_size for path in f.rglob("*.jsonl")] for day, f in folders}
        oldest = min((day for day, found in sizes.items() if found), default=None)
        return Holding(
            self,
            "file",
            sum(map(len, sizes.values())),
            datetime.combine(oldest, time(), UTC) if oldest else None,
            sum(map(sum, sizes.values())),
        )


LOG = LogRule(
    "Event log",
    "KEEP_LOG_DAYS",
    (
        "Recorded lines by UTC day, and their Parquet. Delayboard deletes a day after its nightly "
        "run; the reports remain."
    ),
)


def _expired_days(log: Path, now: datetime) -> list[Path]:
    """The folders of days whose files may go: old enough, read by the index and by the night.

    A day that was imported into lately is kept as long as if it were of today.
    """
    cutoff, first = LOG.cutoff(now), _first_kept_day(now)
    if settings.SHARED_LOG_URL:
        # What is sent is there for nightly runs, and here only until it is in the index.
        cutoff = now - MOVED_AFTER
        first = min([cutoff.date(), *(one.day for one in shared_log.find_unsent(log, date.min))])
    if cutoff is None or first is None:
        return []
    read = dict(LogPosition.objects.values_list("path", "bytes_read"))
    return [
        folder
        for day, folder in day_folders(log)
        if day < first
        and all(_is_deletable(path, cutoff, read, log) for path in folder.rglob("*.jsonl"))
    ]


def _expired_of_all_hosts(now: datetime) -> list[Path]:
    """The expired files in the copy of all hosts' log, which nightly runs alone read."""
    first = _first_kept_day(now)
    folders = day_folders(shared_log.log_for_runs()) if settings.SHARED_LOG_URL else ()
    return [folder for day, folder in folders if first and day < first]


def _first_kept_day(now: datetime) -> date | None:
    """The first day that is no older than its retention, or that a nightly run needs."""
    cutoff = LOG.cutoff(now)
    if cutoff is None:
        return None
    # The first day that a nightly run still needs; it reads the days that follow too.
    at_work = Run.objects.filter(state__in=(RunState.REQUESTED, RunState.RUNNING))
    days = set(at_work.values_list("day", flat=True))
    lately = (now - RUN_WITHIN).date()
    known = set(Run.objects.filter(day__gte=lately).values_list("day", flat=True))
    folders = day_folders(shared_log.log_for_runs())
    logged = {day for day, _ in folders if day >= lately} | set(shared_log.last_sent(lately))
    # What another host has not sent yet has the run of that day made again, from all lines of it.
    unsent = LogHost.objects.filter(unsent_since__date__gte=lately)
    late = {at.astimezone(UTC).date() for at in unsent.values_list("unsent_since", flat=True) if at}
    wanted = min(days | late | (logged - known), default=None)
    return min(cutoff.date(), wanted) if wanted else cutoff.date()


def _is_deletable(path: Path, cutoff: datetime, read: dict[str, int], log: Path) -> bool:
    status = path.stat()
    unread = 0 if RECORDED.fullmatch(path.name) else status.st_size
    is_read = read.get(str(path.relative_to(log)), unread) >= status.st_size
    return is_read and status.st_mtime < cutoff.timestamp()
