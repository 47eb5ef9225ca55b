"""How many messages the list of scheduled messages may lack, since when, and why; pure.

The broker counts its queues every five seconds and rows appear up to a second after the message,
so that list and queues are never quite equal under traffic. A difference is reported when an event
explains it, or when it is larger than the traffic of that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from topology.content.text import count_of
from topology.delays import format_ms, format_span

# Seconds by which a depth is older than the list at most, and the list older than its messages.
LONG_SECONDS = 15
# Time after a gap from which a difference as large as the throughput is caused by the throughput.
SETTLED_AFTER = timedelta(minutes=1)


@dataclass(frozen=True)
class Lost:
    """A time in which copies may have been lost, why, and how many messages that are still
    listed were due in it, and so may have left without being observed."""

    from_at: datetime
    until_at: datetime
    why: str
    at_most: int | None = None
    doubtful: int = 0


@dataclass(frozen=True)
class Seen:
    """What is known of one topology at `now`.

    `listed` are its waiting rows, `overdue` those of them that should have left, `long_overdue`
    those that should have by more than LONG_SECONDS. `queued` is what
    its delay queues hold, None when that is not known; `moved` at most how many entered or left
    while it was counted. `silent_since`: nobody has read its copies since. `behind` is how far
    the list is behind what was read. `longest` is its longest delay, `watched_at` when its
    recording began. `sees_entries` is false where nothing copies what enters, `sees_exits` where
    nothing copies what leaves.
    """

    now: datetime
    listed: int
    overdue: int
    queued: int | None
    moved: int
    longest: timedelta
    watched_at: datetime | None
    long_overdue: int = 0
    sees_entries: bool = True
    sees_exits: bool = True
    silent_since: datetime | None = None
    behind: timedelta = timedelta(0)
    lost: tuple[Lost, ...] = ()


@dataclass(frozen=True)
class Doubt:
    """Why the list may be wrong, in sentences, and since when.

    At least `missing` waiting messages are not in it, and at least `departed` in it no longer
    wait; None when the queues do not show it. `sees_entries` is false when nothing records
    entries: an entry tap or the firehose would.
    """

    since: datetime | None
    why: tuple[str, ...]
    missing: int | None
    departed: int | None
    sees_entries: bool = True

    @property
    def sentence(self) -> str:
        """The difference in words; "" when it is unknown or zero."""
        if self.missing:
            return f"At least {count_of(self.missing, 'waiting message', 'is')} not in this list."
        if self.departed:
            return f"At least {self.departed} of the listed messages already left."
        return ""

    @property
    def is_open(self) -> bool:
        """Whether nothing shows that a message is missing: only that nobody would see it."""
        return not (self.sees_entries or self.missing or self.departed)

    @property
    def verdict(self) -> str:
        """What is claimed."""
        return "may be incomplete" if self.is_open else "is incomplete"


Reason = tuple[datetime | None, str]


def find_doubt(seen: Seen) -> Doubt | None:
    """None when there is no reason to doubt the list."""
    difference = None if seen.queued is None else seen.queued - seen.listed
    now_failing, past = _now_failing(seen), _past(seen)
    if not now_failing and difference == 0 and not seen.overdue:
        # Whatever was missed has left by now.
        return None
    reasons = now_failing + past
    absent = _count_absent(seen)
    if absent:
        why = f"{absent} that are overdue by more than {format_ms(1000 * LONG_SECONDS)} "
        reasons.append((None, why + "are missing in the delay queues."))
    if not reasons:
        if difference is None or abs(difference) <= seen.moved:
            return None
        reasons = [(None, "The number of messages in the delay queues differs from the list.")]
    since = [at for at, _ in reasons if at is not None]
    if seen.lost and not now_failing and not absent and _is_noise(seen):
        difference = None
    return Doubt(
        since=min(since, default=None),
        why=tuple(dict.fromkeys(sentence for _, sentence in reasons)),
        missing=None if difference is None else max(0, difference),
        departed=None if difference is None else max(0, -difference, absent),
        sees_entries=seen.sees_entries,
    )


def _count_absent(seen: Seen) -> int:
    """How many are long overdue and in no queue, however much moved in the last seconds."""
    if seen.queued is None or not seen.sees_exits:
        return 0
    room = max(0, seen.queued - (seen.listed - seen.overdue))
    return max(0, seen.long_overdue - room)


def _now_failing(seen: Seen) -> list[Reason]:
    """What keeps the list from being right at this moment."""
    if not seen.sees_entries:
        only = (
            "This topology has no entry tap, a queue for copies of all messages that enter a "
            "delay. So the list shows only messages published by Delayboard."
        )
        # As many in the list as in the queues are all; none in both show nothing of later ones.
        return [(None, only)] if not seen.listed or seen.queued != seen.listed else []
    reasons: list[Reason] = []
    if seen.silent_since is not None:
        why = "The recorder does not read the tap, so the list misses later entries and deliveries."
        reasons.append((seen.silent_since, why))
    if seen.behind:
        why = f"The list is {format_span(seen.behind)} behind the event log."
        reasons.append((seen.now - seen.behind, why))
    return reasons


def _past(seen: Seen) -> list[Reason]:
    """What happened before and can still make a difference."""
    reasons: list[Reason] = []
    if seen.watched_at is not None and seen.now - seen.watched_at < seen.longest:
        difference = 0 if seen.queued is None else seen.queued - seen.listed
        if difference > seen.moved:
            why = (
                "The list does not include messages that were waiting before the recording started."
            )
            reasons.append((seen.watched_at, why))
    for lost in seen.lost:
        if seen.now - lost.until_at < seen.longest or (lost.doubtful and seen.sees_exits):
            reasons.append((lost.from_at, _describe_loss(lost)))
    return reasons


def _is_noise(seen: Seen) -> bool:
    """Whether list and queues differ by no more than what moves, long after the last gap."""
    if seen.queued is None or any(seen.now - lost.until_at < SETTLED_AFTER for lost in seen.lost):
        return False
    return abs(seen.queued - seen.listed) <= seen.moved


def _describe_loss(lost: Lost) -> str:
    sentence = lost.why
    if lost.at_most is not None:
        sentence += f" RabbitMQ dropped at most {lost.at_most} copies."
    if lost.doubtful:
        sentence += f" {lost.doubtful} listed messages were due in this gap and may be delivered."
    return sentence
