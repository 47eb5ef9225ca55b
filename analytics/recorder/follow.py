"""Keeps the index up to the event log: what the recorders wrote, each line exactly once.

The position in each file moves on in the transaction that changes the rows. So a recorder need
not wait for the database, and after a crash of either nothing is missed and nothing is counted
twice that is in the log once.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from time import monotonic

from django import db
from django.conf import settings
from django.db import DataError, IntegrityError, connection, transaction
from django.db.models.functions import Now

from analytics import facts, minutes, observation
from analytics.events import PROBE, MessageEvent
from analytics.log import RECORDED, lines_from, name_of, readable, take_lock, written_hours
from analytics.models import Firehose, LogHost, LogPosition
from analytics.recorder import pressure
from analytics.recorder.record import Beat, RecordingFailed
from analytics.scheduled import projection
from analytics.scheduled.queries import texts
from topology.database.clock import measure_skew
from topology.models import Topology

# Errors about what a row cannot hold, and not about the database itself.
NOT_FOR_THIS_DATABASE = (DataError, IntegrityError, OverflowError, ValueError)
logger = logging.getLogger(__name__)
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
CHUNK_BYTES = 1024 * 1024
CHUNK_BYTES_UNDER_PRESSURE = 128 * 1024
IDLE_SECONDS = 0.1
LOCKED_SECONDS = 0.2
BEAT_SECONDS = 1.0
REPORT_SECONDS = 5.0
# Seconds at the end in which what was recorded last is read.
REST_SECONDS = 1.5
SEARCH_SECONDS = 1.0
WHOLE_CHECK_SECONDS = 30.0


def follow(*, stop: Event, beat: Beat) -> None:
    """Update the index from the log until `stop` is set.

    `beat` receives: indexed (events), unreadable (lines), behind_bytes, behind_seconds. Only one
    process follows a log at a time. Raises LogError and RecordingFailed; another call continues.
    """
    while not stop.is_set():
        with take_lock(settings.EVENT_LOG, "index") as is_ours:
            if is_ours:
                follower = Follower(settings.EVENT_LOG)
                _follow(follower, stop, beat)
                until = monotonic() + REST_SECONDS
                while follower.step() and monotonic() < until:
                    pass
                follower.report(has_ended=True)
                return
        beat({"waits": True})
        stop.wait(LOCKED_SECONDS)


def _follow(follower: Follower, stop: Event, beat: Beat) -> None:
    beaten = searched = reported = 0.0
    while not stop.is_set():
        pressure.wait_for_recorders(stop)
        moved = follower.step()
        if monotonic() - reported > REPORT_SECONDS:
            reported = monotonic()
            follower.report()
        if monotonic() - beaten > BEAT_SECONDS:
            beaten = monotonic()
            beat(follower.counters())
        if not moved and monotonic() - searched > SEARCH_SECONDS:
            # What waits longer than a moment can be searched for; while there is more, go on.
            moved = texts.keep_up()
            searched = 0.0 if moved else monotonic()
        if not moved:
            stop.wait(IDLE_SECONDS)


class Follower:
    """Reads the files of a log on from where it was left, a chunk at a time."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._host = name_of(log)
        positions = LogPosition.objects.filter(log__in=("", self._host))
        self._positions = dict(positions.values_list("path", "bytes_read"))
        self._topologies: dict[tuple[str, str], Topology | None] = {}
        self._unfinished: set[Path] = set()
        self._sizes: dict[Path, int] = {}
        self._checked_all_at = 0.0
        self._indexed = self._unreadable = self._behind_bytes = 0
        self._last_at: datetime | None = None

    def step(self) -> int:
        """Process one chunk of each recorder's file that has grown; returns the number of lines.

        An incomplete last line, in an hour that nobody writes any more, is from a crash.
        """
        return sum(self._take(path) for path in self._find_grown())

    def report(self, *, has_ended: bool = False) -> None:
        """Report to the other hosts that this one lives, and what of its log is not read yet."""
        if has_ended:
            self._find_grown()
        skew = measure_skew()
        unread_since = (self._last_at or datetime.now(UTC)) - skew if self._behind_bytes else None
        LogHost.objects.update_or_create(
            name=self._host,
            defaults={
                "seen_at": Now(),
                "has_ended": has_ended,
                "unread_since": unread_since,
                "unread_bytes": self._behind_bytes,
                "is_sending": bool(settings.SHARED_LOG_URL),
                "keys": settings.KEYS_FINGERPRINT,
                "clock_ms": skew // timedelta(milliseconds=1),
            },
        )

    def counters(self) -> dict[str, object]:
        seconds = 0.0
        if self._behind_bytes and self._last_at:
            seconds = (datetime.now(UTC) - self._last_at).total_seconds()
        return {
            "indexed": self._indexed,
            "unreadable": self._unreadable,
            "behind_bytes": self._behind_bytes,
            "behind_seconds": round(seconds, 1),
        }

    def _find_grown(self) -> list[Path]:
        """The files with new lines, one for each recorder: the earliest unfinished one.

        A recorder that crashed leaves a file to its successor. Redelivered copies are in the later
        file, and are recognized as repeats only after the earlier one was read.
        """
        self._sizes = {}
        for path in {*self._files(), *self._unfinished}:
            # A day that is past its keeping may be deleted at this moment.
            with suppress(FileNotFoundError):
                self._sizes[path] = path.stat().st_size
        more = {path: size - self._read_of(path) for path, size in self._sizes.items()}
        self._unfinished = {path for path, number in more.items() if number > 0}
        self._behind_bytes = sum(more[path] for path in self._unfinished)
        of_recorders: dict[tuple[str, ...], list[Path]] = defaultdict(list)
        for path in sorted(self._unfinished):
            of_recorders[tuple(path.name.split(".")[:2])].append(path)
        return [
            paths[0] if len(paths) == 1 else min(paths, key=self._next_line_at)
            for paths in of_recorders.values()
        ]

    def _next_line_at(self, path: Path) -> datetime:
        """When the next line was recorded. One that is none is in nobody's way."""
        lines, _ = lines_from(path, self._read_of(path), 1)
        event = next(readable(lines), None)
        if event is None:
            return LAST if not lines else FIRST
        return event.recorded_at

    def _files(self) -> Iterator[Path]:
        if monotonic() - self._checked_all_at > WHOLE_CHECK_SECONDS:
            self._checked_all_at = monotonic()
            folders = list(self._log.glob("date=*/hour=*"))
        else:
            folders = list(written_hours(self._log, datetime.now(UTC)))
        for folder in folders:
            if folder.is_dir():
                yield from (path for path in folder.iterdir() if RECORDED.fullmatch(path.name))

    def _take(self, path: Path) -> int:
        name, begun = self._name(path), self._read_of(path)
        limit = CHUNK_BYTES_UNDER_PRESSURE if pressure.is_on() else CHUNK_BYTES
        lines, position = lines_from(path, begun, limit)
        if not lines and path.parent in written_hours(self._log, datetime.now(UTC)):
            return 0
        if not lines:
            # As it was before it was read: what has come since is whole lines.
            position = self._sizes[path]
        events = list(readable(lines))
        try:
            refused = self._put_down(events, name, position)
        except db.Error as error:
            raise RecordingFailed(
                f"The database did not accept events of the event log: {error}. The recorder "
                "tries again."
            ) from error
        self._positions[name] = position
        self._indexed += len(events) - refused
        self._unreadable += max(1, len(lines)) - len(events) + refused
        self._last_at = events[-1].recorded_at if events else self._last_at
        return max(1, len(lines))

    def _put_down(self, events: Sequence[MessageEvent], name: str, position: int) -> int:
        """Index these and move on; how many the database refuses, whatever it holds already."""
        try:
            with transaction.atomic():
                self._index(events)
                self._move_on(name, position)
            return 0
        except NOT_FOR_THIS_DATABASE:
            logger.warning(
                "The index did not accept some events in %s. The recorder tries each alone.", name
            )
        with transaction.atomic():
            refused = [event for event in events if not self._index_alone(event)]
            self._move_on(name, position)
        for event in refused:
            logger.error("The index did not accept the event %s in %s.", event.event_id, name)
        return len(refused)

    def _index(self, events: Sequence[MessageEvent]) -> None:
        # Followers of other hosts may index the same topologies: each locks them in one order.
        for topology, group in sorted(self._by_topology(events), key=lambda one: one[0].pk):
            index(topology, group)

    def _index_alone(self, event: MessageEvent) -> bool:
        try:
            with transaction.atomic():
                self._index([event])
        except NOT_FOR_THIS_DATABASE:
            return False
        return True

    def _by_topology(
        self, events: Sequence[MessageEvent]
    ) -> Iterator[tuple[Topology, list[MessageEvent]]]:
        """The events of topologies that are known here, together."""
        groups: dict[tuple[str, str], list[MessageEvent]] = defaultdict(list)
        for event in events:
            if event.topology:
                groups[event.broker, event.topology].append(event)
        for (broker, slug), group in groups.items():
            if topology := self._topology(broker, slug):
                yield topology, group

    def _topology(self, broker: str, slug: str) -> Topology | None:
        if (broker, slug) not in self._topologies:
            rows = Topology.objects.select_related("broker")
            self._topologies[broker, slug] = rows.filter(broker__slug=broker, slug=slug).first()
        return self._topologies[broker, slug]

    def _read_of(self, path: Path) -> int:
        return self._positions.get(self._name(path), 0)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._log))

    def _move_on(self, name: str, position: int) -> None:
        moved = {"bytes_read": position, "log": self._host}
        LogPosition.objects.update_or_create(path=name, defaults=moved)


def index(topology: Topology, events: Sequence[MessageEvent]) -> None:
    """Bring the scheduled messages and the minutes up to these events.

    Within the caller's transaction.
    """
    if connection.features.has_select_for_update:
        # An entry and its exit may be in the logs of two hosts: neither may miss the other.
        list(Topology.objects.select_for_update(no_key=True).filter(pk=topology.pk).values("pk"))
    observed = [event for event in events if event.source not in (facts.SOURCE, PROBE)]
    stated = [event for event in events if event.source == facts.SOURCE]
    if stated and is_seen_by_nobody(topology):
        observed += [as_entry(event) for event in stated if is_delayed(event)]
    fresh = projection.without_repeats(topology, observed)
    closed = projection.project(topology, fresh)
    minutes.count(topology, fresh, closed)


def is_seen_by_nobody(topology: Topology) -> bool:
    """Whether what Delayboard publishes into its delays is all that is known of its entries."""
    is_untapped = "entry" in observation.untapped(topology)
    return is_untapped and not Firehose.objects.filter(broker_id=topology.broker_id).exists()


def is_delayed(event: MessageEvent) -> bool:
    return event.kind == "published" and event.requested_delay_ms > 0


def as_entry(event: MessageEvent) -> MessageEvent:
    """Delayboard's own publishing of a delayed message, as a tap would have seen it."""
    due_at = event.recorded_at + timedelta(milliseconds=event.requested_delay_ms)
    return replace(event, kind="scheduled", attempt=1, due_at=due_at)
