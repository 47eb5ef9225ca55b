"""How complete the list of scheduled messages is: what it lacks, since when, and why.

The broker counts its queues every five seconds and rows appear up to a second after the message,
so that list and queues are never quite equal under traffic. A difference is reported when an event
explains it, or when it is larger than the traffic of that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import Sum

from analytics.buckets import LONG_OVERDUE
from analytics.events import EventError, decode
from analytics.log import RECORDED, written_hours
from analytics.models import Gap, LogHost, LogPosition, Minute, Probe
from analytics.observation import observe
from analytics.scheduled.summaries.counts import Scope, count_by_topology
from topology.content.text import count_of
from topology.delays import format_span
from topology.models import State, Topology
from topology.operations import provision
from topology.patterns.pattern import ParamsError
from topology.snapshots import Latest

# Age up to which depths are a measure of the present list.
OLDEST_DEPTHS = timedelta(seconds=20)
# Age of the broker's counts: it counts every five seconds, and a poll is a few seconds old.
COUNTED_WITHIN = timedelta(seconds=10)
# Age of gaps up to which messages that left in them may still be in the list.
REMEMBERED = timedelta(days=30)
MOST_GAPS = 100

# Delay of the follower that is not mentioned: it reads several times a second.
NORMAL = timedelta(seconds=4)
LONGEST_LINE = 256 * 1024


@dataclass(frozen=True)
class Doubt:
    """Why the list may be wrong for a topology, in sentences, and since when.

    At least `difference` waiting messages are not in it; below zero, at least so many that are in
    it have left; zero when the queues show nothing certain. `sees_entries` is false when nothing
    records entries: an entry tap or the firehose would.
    """

    topology: Topology
    since: datetime | None
    why: tuple[str, ...]
    difference: int
    sees_entries: bool = True

    @property
    def figure(self) -> str:
        """The difference in words; "" when nothing is certain."""
        if self.difference > 0:
            messages = count_of(self.difference, "waiting message", "is")
            return f"At least {messages} not in this list."
        if self.difference:
            return f"At least {-self.difference} of the listed messages already left."
        return ""

    @property
    def is_open(self) -> bool:
        """Whether nothing shows that a message is missing: only that nobody would see it."""
        return not (self.sees_entries or self.difference)

    @property
    def verdict(self) -> str:
        """What is claimed."""
        return "may be incomplete" if self.is_open else "is incomplete"

    @property
    def sentence(self) -> str:
        """All of it in words."""
        since = f" since {self.since:%Y-%m-%d %H:%M:%S} UTC" if self.since else ""
        parts = (f"The list {self.verdict}{since}.", self.figure, *self.why)
        return " ".join(part for part in parts if part)

    @property
    def record(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "topology": self.topology.slug,
            "since": self.since.isoformat() if self.since else None,
            "why": list(self.why),
            "difference": self.difference,
            "sentence": self.sentence,
        }


@dataclass(frozen=True)
class Seen:
    """What is known of one topology at `now`.

    `listed` are its waiting rows, `overdue` those of them that should have left, `long_overdue`
    those that should have a minute ago. `queued` is what its delay queues hold, None when that is
    not known; `moved` at most how many entered or left while it was counted. `silent_since`: nobody
    has read its copies since. `behind` is how far the list is behind what was read. `longest` is
    its longest delay, `watched_at` when its recording began. `sees_entries` is false where nothing
    copies what enters, `sees_exits` where nothing copies what leaves. `gaps` are the times in which
    copies may be lost of messages that can still wait, or are still listed.
    """

    topology: Topology
    now: datetime
    listed: int
    overdue: int
    long_overdue: int
    queued: int | None
    moved: int
    longest: timedelta
    watched_at: datetime | None
    sees_entries: bool = True
    sees_exits: bool = True
    silent_since: datetime | None = None
    behind: timedelta = timedelta(0)
    gaps: tuple[Gap, ...] = ()


def find_doubts(
    scope: Scope, topologies: Iterable[Topology], latest: Mapping[int, Latest]
) -> list[Doubt]:
    """The doubtful among the topologies that were applied, those that are certainly incomplete
    first; `latest` is by broker."""
    applied = [one for one in topologies if one.state in (State.APPLIED, State.APPLYING)]
    now = scope.now
    overdue = count_by_topology(scope.overdue_rows())
    long_overdue = count_by_topology(scope.overdue_rows(LONG_OVERDUE))
    observed = observe(applied, now)
    behind = find_lag(settings.EVENT_LOG, now)
    this_minute = now.replace(second=0, microsecond=0)
    rows = Minute.objects.filter(
        topology__in=applied, minute_at__gte=this_minute - timedelta(minutes=1)
    )
    moved = {
        pk: entered + left
        for pk, entered, left in rows.values_list("topology").annotate(Sum("entered"), Sum("left"))
    }
    gaps = Gap.objects.filter(topology__in=applied, until_at__gt=now - REMEMBERED)[:MOST_GAPS]
    probes = Probe.objects.filter(topology__in=applied, arrived_at=None, abandoned_at=None)
    sent_probes = list(probes.exclude(sent_at=None))

    def see(topology: Topology) -> Seen:
        pk, seen = topology.pk, observed[topology.pk]
        sees_exits = pk not in scope.not_observed
        try:
            longest = topology.pattern.longest(topology.parsed)
        except ParamsError:
            longest = timedelta.max
        queued, passing = _depth(topology, latest.get(topology.broker_id), now)
        # Probes are in no list, and those of the last seconds may not be counted yet.
        own = [probe for probe in sent_probes if probe.topology_id == pk]
        if queued is not None:
            queued = max(0, queued - sum(probe.due_at > now for probe in own))
        passing += sum(
            any(abs(now - at) < COUNTED_WITHIN for at in (probe.due_at - probe.delay, probe.due_at))
            for probe in own
        )

        def can_matter(gap: Gap) -> bool:
            if now - gap.until_at < longest:
                return True
            due_in_it = scope.only(pk).rows(gap.from_at, min(gap.until_at, now))
            return bool(overdue[pk]) and sees_exits and due_in_it.exists()

        return Seen(
            topology=topology,
            now=now,
            listed=scope.by_topology[pk],
            overdue=overdue[pk],
            long_overdue=long_overdue[pk],
            queued=queued,
            moved=moved.get(pk, 0) + passing,
            longest=longest,
            watched_at=topology.applied_at,
            sees_entries="entry" not in seen.not_observed,
            sees_exits=sees_exits,
            silent_since=seen.silent_since,
            behind=behind,
            gaps=tuple(gap for gap in gaps if gap.topology_id == pk and can_matter(gap)),
        )

    doubts = [doubt for one in applied if (doubt := find_doubt(see(one)))]
    return sorted(doubts, key=lambda doubt: doubt.is_open)


def find_doubt(seen: Seen) -> Doubt | None:
    """Pure: None when there is no reason to doubt the list of this topology."""
    difference = None if seen.queued is None else seen.queued - seen.listed
    reasons: list[tuple[datetime | None, str]] = []
    # As many in the list as in the queues are all; none in both show nothing of later ones.
    if not seen.sees_entries and (not seen.listed or difference != 0):
        only = (
            "This topology has no entry tap, a queue for copies of all messages that enter a "
            "delay. So the list shows only messages published by Delayboard."
        )
        reasons.append((None, only))
    if seen.sees_entries and seen.silent_since is not None:
        why = "The recorder does not read the tap, so the list misses later entries and deliveries."
        reasons.append((seen.silent_since, why))
    if seen.sees_entries and seen.behind:
        why = f"The list is {format_span(seen.behind)} behind the event log."
        reasons.append((seen.now - seen.behind, why))
    if not reasons and difference == 0 and not seen.overdue:
        # Whatever was missed has left by now.
        return None
    is_certain = difference is not None and abs(difference) > seen.moved
    certain = difference if difference is not None and is_certain else 0
    is_young = seen.watched_at is not None and seen.now - seen.watched_at < seen.longest
    if is_young and certain > 0:
        why = "The list does not include messages that were waiting before the recording started."
        reasons.append((seen.watched_at, why))
    for gap in seen.gaps:
        dropped = f" RabbitMQ dropped at most {gap.at_most} copies." if gap.at_most else ""
        reasons.append((gap.from_at, gap.why + dropped))
    if seen.queued is not None and seen.sees_exits:
        # However much moved in the last seconds, what is long overdue and in no queue has left.
        room = max(0, seen.queued - (seen.listed - seen.overdue))
        if absent := max(0, seen.long_overdue - room):
            why = f"{absent} that are overdue by a minute or more are missing in the delay queues."
            reasons.append((None, why))
            certain = certain if certain > 0 else min(certain, -absent)
    if not reasons and certain:
        reasons = [(None, "The number of messages in the delay queues differs from the list.")]
    if not reasons:
        return None
    return Doubt(
        topology=seen.topology,
        since=min((at for at, _ in reasons if at is not None), default=None),
        why=tuple(dict.fromkeys(sentence for _, sentence in reasons)),
        difference=certain,
        sees_entries=seen.sees_entries,
    )


def _depth(topology: Topology, latest: Latest | None, now: datetime) -> tuple[int | None, int]:
    """Messages in its delay queues, None where one is not counted; how many enter meanwhile."""
    if latest is None or latest.error or latest.snapshot is None:
        return None, 0
    snapshot = latest.snapshot
    if now - snapshot.taken_at >= OLDEST_DEPTHS:
        return None, 0
    try:
        queues = provision.queues_of(topology, snapshot)
        waits = topology.pattern.delay_queues(topology.parsed, queues)
    except ParamsError:
        return None, 0
    names = [queue.name for queue in waits]
    depth = snapshot.sum_messages(names) if names else 0
    if depth is None:
        return None, 0
    passing = sum(snapshot.numbers[name].publish_rate or 0.0 for name in names)
    return depth, round(passing * COUNTED_WITHIN.total_seconds())


def find_lag(log: Path, now: datetime) -> timedelta:
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
    """The age of the first whole line after a position."""
    try:
        with file.open("rb") as lines:
            lines.seek(position)
            line = lines.readline(LONGEST_LINE)
        return now - decode(line).recorded_at if line.endswith(b"\n") else timedelta(0)
    except (OSError, EventError):
        return timedelta(0)
