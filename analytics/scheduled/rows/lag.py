"""How far the list is behind the event log."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from analytics.events import EventError, decode
from analytics.log import RECORDED, written_hours
from analytics.models import LogHost, LogPosition

# The follower reads several times a second.
NORMAL = timedelta(seconds=4)
LONGEST_LINE = 256 * 1024


def behind(log: Path, now: datetime) -> timedelta:
    """The age of the oldest line of this hour and the last that is not in the list yet, of this
    machine's log and of what other hosts report of theirs.

    Zero when all of them are, and when they are too young to be missed.
    """
    files = [
        file
        for folder in written_hours(log, now)
        for file in folder.glob("*.jsonl")
        if RECORDED.fullmatch(file.name)
    ]
    names = {str(file.relative_to(log)): file for file in files}
    rows = LogPosition.objects.filter(path__in=names)
    read = dict(rows.values_list("path", "bytes_read"))
    ages = [_age(file, read.get(name, 0), now) for name, file in names.items()]
    unread = LogHost.objects.filter(unread_since__isnull=False)
    for host in unread:
        reads_on = not host.has_ended and not host.is_silent
        ages.append((host.seen_at if reads_on else now) - (host.unread_since or now))
    oldest = max(ages, default=timedelta(0))
    return oldest if oldest > NORMAL else timedelta(0)


def _age(file: Path, position: int, now: datetime) -> timedelta:
    """Of the first whole line after a position."""
    try:
        with file.open("rb") as lines:
            lines.seek(position)
            line = lines.readline(LONGEST_LINE)
        return now - decode(line).recorded_at if line.endswith(b"\n") else timedelta(0)
    except (OSError, EventError):
        return timedelta(0)
