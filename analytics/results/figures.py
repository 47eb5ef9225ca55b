"""Figures of some messages as counts, which add up over days, hours and topologies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import orjson

from analytics import buckets

Key: TypeAlias = tuple[str | int, ...]
Trail: TypeAlias = tuple[int, int, str]
ENTERED, DELIVERED, DIED, CANCELLED = "entered", "delivered", "died", "cancelled"
MOVED = "moved"
WAITING, UNEXPLAINED, UNOBSERVED = "waiting", "unexplained", "not observed"
# Count of entries of equal messages without an id that may be recorded twice; it is no fate of a
# message.
REPEATED = "repeated"
FATES = (DELIVERED, DIED, CANCELLED, MOVED, WAITING, UNOBSERVED, UNEXPLAINED)
# Outcomes of retried messages: of those that left, no more is known unless giving up is observed.
LEFT, RECOVERED, EXHAUSTED, OPEN = "left", "confirmed", "exhausted", "open"
# Name of LEFT in rows of earlier versions, and its place in the keys of these tables.
_LEFT_BEFORE, _OUTCOMES = "recovered", {"outcomes": 2, "groups": 4}
GROUPS, GROUP_MESSAGES, DEAD_LETTER_GROUPS = "groups", "group_messages", "dead_letter_groups"


@dataclass(frozen=True)
class Step:
    """One attempt of the Kaplan-Meier estimate: `failing` is the share after it.

    `at_risk` are the messages whose attempt has ended, `censored` those that still wait in it.
    Of those that `left` it is unknown whether they were processed.
    """

    attempt: int
    at_risk: int
    recovered: int
    left: int
    exhausted: int
    censored: int
    failing: float


class Figures:
    """Counts by table and key.

    late_by_delay (bucket of delay, bucket of lateness), late_by_hour (hour, bucket), early_by_hour
    (hour, bucket of how early, ON_TIME for less than a millisecond),
    messages (), retried (), attempts (attempt), outcomes (first, last, outcome), recoveries
    (bucket), causes (queue, reason, exception, routing key), probes_late (bucket of delay, bucket
    of lateness), probes_missing and probes_unmeasured (bucket of delay), ledger (fate),
    dead_letters (kind, reason), dead_letters_by_hour (kind, hour), failures_by_hour (hour),
    first_failures_by_hour (hour): messages that failed for the first time,
    counted (table): days of which a later table is complete, so that none in it is zero,
    generated (): days of generated events, compared (kind): days of which analytics.results.unusual
    compared it, groups (dimension, value, first, last, outcome),
    group_messages (dimension, value, messages or retried), dead_letter_groups (kind, reason,
    origin, exception). Hours are of the day, in UTC.
    """

    def __init__(self) -> None:
        self.counts: defaultdict[str, Counter[Key]] = defaultdict(Counter)

    def add_stored(self, text: str) -> None:
        """Add what `stored` returned."""
        stored: dict[str, list[list[Any]]] = orjson.loads(text)
        for table, rows in stored.items():
            counts = self.counts[table]
            place = _OUTCOMES.get(table)
            for row in rows:
                if place and row[place] == _LEFT_BEFORE:
                    row[place] = LEFT
                key = tuple(row[:-1])
                counts[key] = counts.get(key, 0) + row[-1]

    def add(self, other: Figures) -> None:
        for table, counts in other.counts.items():
            self.counts[table].update(counts)

    def stored(self) -> str:
        """The counts as JSON."""
        tables = {
            table: [[*key, number] for key, number in sorted(counts.items(), key=str) if number]
            for table, counts in self.counts.items()
        }
        return orjson.dumps(tables).decode()

    def total(self, table: str) -> int:
        return self.counts[table].total() if table in self.counts else 0

    def by(self, table: str, place: int = 0) -> Counter[str | int]:
        """The counts of a table added up by one part of its key."""
        found: Counter[str | int] = Counter()
        for key, number in self.items(table):
            found[key[place]] += number
        return found

    def within_group(self, table: str, group: int) -> buckets.Counts:
        """The buckets of one group, from a table with a group and a bucket."""
        return {cast(int, key[1]): n for key, n in self.items(table) if key[0] == group}

    @property
    def late(self) -> buckets.Counts:
        return cast(buckets.Counts, self.by("late_by_hour", 1))

    def measure_error(self, hour: int | None = None) -> float | None:
        """The error of the recorder's own stamps in ms, of an hour or of all; None if nothing was
        measured, and for days that were computed before this was counted.

        No TTL ends early, so that what seems early shows the error: one delivery in a hundred seems
        earlier than this, or of fewer than a hundred the earliest one.
        """
        table = "early_by_hour"
        early = self.within_group(table, hour) if hour is not None else self.by(table, 1)
        counts = cast(buckets.Counts, early)
        is_enough = buckets.is_enough(sum(counts.values()), 0.99)
        return buckets.percentile(counts, 0.99 if is_enough else 1.0)

    @property
    def measured(self) -> int:
        return self.total("late_by_hour")

    @property
    def messages(self) -> int:
        return self.total("messages")

    @property
    def retried(self) -> int:
        return self.total("retried")

    @property
    def recoveries(self) -> buckets.Counts:
        return cast(buckets.Counts, self.by("recoveries"))

    def fate(self, name: str) -> int:
        return self.counts["ledger"][(name,)] if "ledger" in self.counts else 0

    @property
    def possible_repeats(self) -> int:
        """How many of the unexplained may be a second copy of another message's entry."""
        return min(self.fate(UNEXPLAINED), self.fate(REPEATED))

    def outcome(self, name: str) -> int:
        return self.by("outcomes", 2)[name]

    @property
    def knows_recoveries(self) -> bool:
        """Whether it is known of each message that left the retries that it was processed."""
        return not self.outcome(LEFT)

    def survival(self) -> list[Step]:
        """Kaplan-Meier by attempt: the event is to leave, open messages are censored.

        An exhausted message never leaves, so that it counts as failing in every later attempt.
        A message whose first attempts ended on an earlier day is at risk from its first attempt of
        this day on.
        """
        return kaplan_meier({cast(Trail, key): number for key, number in self.items("outcomes")})

    def items(self, table: str) -> Iterator[tuple[Key, int]]:
        return iter(self.counts[table].items() if table in self.counts else ())


def count_late(text: str, limit: int) -> tuple[int, int]:
    """The measured deliveries of what `stored` returned, and those in buckets below the limit.

    Of many rows this takes a fraction of the time of all their counts.
    """
    rows: list[tuple[int, int, int]] = orjson.loads(text).get("late_by_hour", [])
    measured = sum([number for _, _, number in rows])
    return measured, sum([number for _, bucket, number in rows if bucket < limit])


def kaplan_meier(trails: Mapping[Trail, int]) -> list[Step]:
    """The steps of messages by their first and last attempt and outcome."""
    last = max((end for _, end, _ in trails), default=0)
    failing, steps = 1.0, []
    for attempt in range(1, last + 2):
        at_risk = ended = 0
        of_attempt: Counter[str] = Counter()
        for (first, end, outcome), number in trails.items():
            if first <= attempt <= end:
                at_risk += number
            elif outcome == EXHAUSTED and end < attempt:
                ended += number
            # The last attempt of an open message has failed; it waits in the next one.
            if end + (outcome == OPEN) == attempt:
                of_attempt[outcome] += number
        recovered, left, exhausted, censored = (
            of_attempt[one] for one in (RECOVERED, LEFT, EXHAUSTED, OPEN)
        )
        if not at_risk and not censored:
            continue
        if at_risk:
            failing *= 1 - (recovered + left) / (at_risk + ended)
        steps.append(Step(attempt, at_risk, recovered, left, exhausted, censored, failing))
    return steps
