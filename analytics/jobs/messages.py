"""The messages of a day, divided by how they are counted: by one aggregation, or by windows.

Both give `pairs` as of accuracy.pair, `trails` as of retries.by_message with trails.trails, and
`attempts` as of retries.by_attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from analytics.jobs import schema
from analytics.jobs.checkpoints import keep
from analytics.jobs.tables import accuracy, retries, single_messages, trails

# Messages that are not single and are sent to every task; more are joined by an exchange.
BROADCAST_AT_MOST = 500_000
# Its begin and end.
Day: TypeAlias = tuple[datetime, datetime]


@dataclass(frozen=True)
class SingleMessages:
    """Those that one aggregation counts: by attempt, and their events."""

    by_attempt: DataFrame
    events: DataFrame
    day: Day

    def pairs(self) -> DataFrame:
        return single_messages.pairs(self.by_attempt)

    def trails(self) -> DataFrame:
        return single_messages.messages(self.by_attempt, *self.day)

    def attempts(self) -> DataFrame:
        return single_messages.attempts(self.by_attempt)


@dataclass(frozen=True)
class OtherMessages:
    """Those without an id or with repeats: all their events, as of schema.each_once; without
    repeats; and of these those of the day.
    """

    copies: DataFrame
    events: DataFrame
    counted: DataFrame
    day: Day

    def pairs(self) -> DataFrame:
        sides = self.events.withColumn("queue", f.lit(""))
        return accuracy.pair(sides.select(*schema.TRIP_COLUMNS, "queue"))

    def trails(self) -> DataFrame:
        trail = trails.trails(trails.sides(self.events, self.day[1]), *self.day)
        return union([retries.by_message(self.counted), trail])

    def attempts(self) -> DataFrame:
        return retries.by_attempt(self.counted)


def single(observed: DataFrame, day: Day) -> tuple[SingleMessages, DataFrame | None]:
    """The messages by one aggregation, and which are not: None if all are."""
    by_attempt = keep(single_messages.by_attempt(observed, *day))
    mixed = keep(by_attempt.where("not is_single").select(*schema.MESSAGE).distinct())
    number = mixed.count()
    named = observed.where("has_id")
    if number:
        mixed = f.broadcast(mixed) if number <= BROADCAST_AT_MOST else mixed
        by_attempt, named = (
            one.join(mixed, list(schema.MESSAGE), "left_anti") for one in (by_attempt, named)
        )
    return SingleMessages(by_attempt, named, day), mixed if number else None


def copies_without_id(observed: DataFrame, sources: int) -> DataFrame:
    """The events of messages without an id, as of schema.each_once_without_id."""
    return keep(schema.each_once_without_id(observed.where("not has_id"), sources))


def copies_of_mixed(observed: DataFrame, mixed: DataFrame) -> DataFrame:
    """The events of messages with an id that one aggregation does not count, as of
    schema.each_once.
    """
    named = observed.where("has_id").join(mixed, list(schema.MESSAGE), "left_semi")
    return keep(schema.each_once(named))


def others(copies: DataFrame, day: Day) -> OtherMessages:
    """The other messages, of their copies."""
    each = copies.where("is_kept").drop("copies", "is_kept")
    counted = keep(retries.of_day(each, *day))
    return OtherMessages(copies, each, counted, day)


def union(frames: Iterable[DataFrame]) -> DataFrame:
    """The rows of all; null where a frame has not the column."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
