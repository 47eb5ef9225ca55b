"""The messages of a day, divided by how they are counted: by one aggregation, or by windows.

Nearly every copy of a message with an id is the only one of its kind and attempt: one hash
aggregation joins entry and exit, without a window or sorting the day. Those of which this is not
so (a repeat, a replay, two sources) are few, and go the way of messages without an id. Both give
`pairs` as of accuracy.pair, `trails` as of retries.by_message with trails.trails, and `attempts` as
of retries.by_attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from analytics.jobs import schema
from analytics.jobs.schema import keep
from analytics.jobs.tables import accuracy, losses, retries, trails
from analytics.jobs.tables.accuracy import clock, compute_lateness, is_entry, is_taken, is_trip
from analytics.jobs.tables.retries import COUNTED_KINDS, counts_between

# Most messages that are sent to every task; more are joined by an exchange.
BROADCAST_AT_MOST = 500_000
# Begin and end of a day.
Day: TypeAlias = tuple[datetime, datetime]


@dataclass(frozen=True)
class SingleMessages:
    """Messages that one aggregation counts: by attempt, and their events."""

    by_attempt: DataFrame
    events: DataFrame
    day: Day

    def pairs(self) -> DataFrame:
        has_side = f.col("entered_us").isNotNull() | f.col("left_us").isNotNull()
        return compute_lateness(self.by_attempt.where(has_side).withColumn("queue", f.lit("")))

    def trails(self) -> DataFrame:
        release = f.max(f.when(f.col("is_counted"), f.col("release_id")))
        return self.by_attempt.groupBy(*schema.MESSAGE).agg(
            f.max(f.col("is_counted").cast("long")).alias("messages"),
            f.max(f.col("is_retried").cast("long")).alias("retried"),
            release.alias("release_id"),
            *trails.trail(*self.day),
        )

    def attempts(self) -> DataFrame:
        retried = self.by_attempt.where("is_retried")
        return retried.select(*schema.MESSAGE, "attempt", f.lit(1).alias("messages"))


@dataclass(frozen=True)
class OtherMessages:
    """Messages without an id or with repeats: all their events, as of schema.each_once; without
    repeats; and of these those of the day. `facts` are all events where any ended a message.
    """

    copies: DataFrame
    events: DataFrame
    counted: DataFrame
    facts: DataFrame | None
    day: Day

    def pairs(self) -> DataFrame:
        sides = self.events.select(*schema.TRIP_COLUMNS)
        if self.facts is not None:
            sides = sides.unionByName(accuracy.moves(self.facts, sides))
        return accuracy.pair(sides.withColumn("queue", f.lit("")))

    def trails(self) -> DataFrame:
        trail = trails.trails(trails.sides(self.events, self.day[1]), *self.day)
        return union([retries.by_message(self.counted), trail])

    def attempts(self) -> DataFrame:
        return retries.by_attempt(self.counted)


def single(
    observed: DataFrame, ended: DataFrame | None, day: Day
) -> tuple[SingleMessages, DataFrame | None]:
    """The messages by one aggregation, and which are not: None if all are."""
    by_attempt = keep(_count_by_attempt(observed, *day))
    mixed = by_attempt.where("not is_single").select(*schema.MESSAGE)
    if ended is not None:
        # The exit of one that was moved may be that of an entry on a later day.
        mixed = mixed.union(losses.moved(ended))
    mixed = keep(mixed.distinct())
    number = mixed.count()
    named = observed.where("has_id")
    if number:
        mixed = f.broadcast(mixed) if number <= BROADCAST_AT_MOST else mixed
        by_attempt, named = (
            one.join(mixed, list(schema.MESSAGE), "left_anti") for one in (by_attempt, named)
        )
    return SingleMessages(by_attempt, named, day), mixed if number else None


def others(copies: DataFrame, facts: DataFrame | None, day: Day) -> OtherMessages:
    """The other messages, of their copies."""
    each = copies.where("is_kept").drop("copies", "is_kept")
    counted = keep(retries.of_day(each, *day))
    return OtherMessages(copies, each, counted, facts, day)


def union(frames: Iterable[DataFrame]) -> DataFrame:
    """The rows of all; null where a frame has not the column."""
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)


def _count_by_attempt(observed: DataFrame, begin: datetime, end: datetime) -> DataFrame:
    """Observed events -> one row per message with an id and attempt: its entry and its exit.

    `is_single`: at most one copy of each kind, the entry before the exit. `is_counted` and
    `is_retried` on the day from `begin` to `end`.
    """
    is_entry, exits = f.col("is_entry"), f.col("is_exit") & f.col("is_trip")
    is_counted, is_retry = f.col("is_counted"), f.col("is_retry")

    is_backwards = f.coalesce(f.col("left_us") < f.col("entered_us"), f.lit(False))
    once = (f.greatest("entries", "exits", "publishes") <= 1) & (f.col("ends") == 0)

    def only(side: Column, name: str) -> Column:
        return f.max(f.when(side, f.col(name)))

    # By message, so that what is counted by message needs no second exchange.
    return (
        _narrow(observed, begin, end)
        .repartition(*schema.MESSAGE)
        .groupBy(*schema.MESSAGE, "attempt")
        .agg(
            f.count_if(is_entry).alias("entries"),
            f.count_if("is_exit").alias("exits"),
            f.count_if("is_publish").alias("publishes"),
            f.count_if("is_end").alias("ends"),
            only(is_entry, "recorded_us").alias("entered_us"),
            only(exits, "recorded_us").alias("left_us"),
            only(is_entry, "requested_delay_ms").alias("entry_delay_ms"),
            only(exits, "requested_delay_ms").alias("exit_delay_ms"),
            only(is_entry, "destination_id").alias("entry_destination_id"),
            only(exits, "destination_id").alias("exit_destination_id"),
            only(is_entry, "clock").alias("entry_clock"),
            only(exits, "clock").alias("exit_clock"),
            only(exits, "is_taken").alias("is_taken"),
            f.min(f.when(is_entry | f.col("is_exit"), f.col("caught_up"))).alias("were_caught_up"),
            f.max("is_counted").alias("is_counted"),
            f.max(is_counted & is_retry).alias("is_retried"),
            f.max("is_retry").alias("is_retry"),
            f.min("history_us").alias("history_us"),
            f.max("release_id").alias("release_id"),
            *trails.first_failure(),
        )
        .withColumn("is_single", once & ~is_backwards)
        .drop("entries", "exits", "publishes", "ends")
    )


def _narrow(observed: DataFrame, begin: datetime, end: datetime) -> DataFrame:
    """Observed events -> those with an id as numbers: an exchange copies every text of a row."""
    return observed.where(f.col("has_id") & f.col("kind").isin(*COUNTED_KINDS)).select(
        *(*schema.MESSAGE, "attempt", "recorded_us", "requested_delay_ms", "caught_up"),
        is_entry().alias("is_entry"),
        (f.col("kind") == "delivered").alias("is_exit"),
        (f.col("kind") == "published").alias("is_publish"),
        (f.col("kind") == "died").alias("is_end"),
        is_trip().alias("is_trip"),
        f.xxhash64("destination").alias("destination_id"),
        clock().alias("clock"),
        is_taken().alias("is_taken"),
        counts_between(begin, end).alias("is_counted"),
        trails.is_retry().alias("is_retry"),
        trails.history_us().alias("history_us"),
        schema.release_id().alias("release_id"),
        *trails.failure(end),
    )
