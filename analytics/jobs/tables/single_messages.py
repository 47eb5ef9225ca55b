"""Messages with an id, by one hash aggregation: no window, no sorting of the day.

Nearly every copy of such a message is the only one of its kind and attempt. Those messages of
which this is not so (a repeat, a replay, two sources) are few, and go the way of messages
without an id.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from analytics.jobs.schema import MESSAGE, release_id
from analytics.jobs.tables import trails
from analytics.jobs.tables.accuracy import clock, compute_lateness, is_entry, is_taken, is_trip
from analytics.jobs.tables.retries import COUNTED_KINDS, counts_between


def by_attempt(observed: DataFrame, begin: datetime, end: datetime) -> DataFrame:
    """Observed events -> one row per message with an id and attempt: its entry and its exit.

    `is_single`: at most one copy of each kind, the entry before the exit. `is_counted` and
    `is_retried` on the day from `begin` to `end`.
    """
    is_entry, exits = f.col("is_entry"), f.col("is_exit") & f.col("is_trip")
    is_counted, is_retry = f.col("is_counted"), f.col("is_retry")

    def only(side: Column, name: str) -> Column:
        return f.max(f.when(side, f.col(name)))

    # By message, so that what is counted by message needs no second exchange.
    return (
        _narrow(observed, begin, end)
        .repartition(*MESSAGE)
        .groupBy(*MESSAGE, "attempt")
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
        .withColumn("is_single", _is_single())
        .drop("entries", "exits", "publishes", "ends")
    )


def _narrow(observed: DataFrame, begin: datetime, end: datetime) -> DataFrame:
    """Observed events -> those with an id as numbers: an exchange copies every text of a row."""
    return observed.where(f.col("has_id") & f.col("kind").isin(*COUNTED_KINDS)).select(
        *(*MESSAGE, "attempt", "recorded_us", "requested_delay_ms", "caught_up"),
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
        release_id().alias("release_id"),
        *trails.failure(end),
    )


def _is_single() -> Column:
    is_backwards = f.coalesce(f.col("left_us") < f.col("entered_us"), f.lit(False))
    once = (f.greatest("entries", "exits", "publishes") <= 1) & (f.col("ends") == 0)
    return once & ~is_backwards


def pairs(singles: DataFrame) -> DataFrame:
    """Single messages by attempt -> pairs as of accuracy.pair."""
    has_side = f.col("entered_us").isNotNull() | f.col("left_us").isNotNull()
    return compute_lateness(singles.where(has_side).withColumn("queue", f.lit("")))


def messages(singles: DataFrame, begin: datetime, end: datetime) -> DataFrame:
    """Single messages by attempt -> as of retries.by_message, and its trails.trail."""
    release = f.max(f.when(f.col("is_counted"), f.col("release_id")))
    return singles.groupBy(*MESSAGE).agg(
        f.max(f.col("is_counted").cast("long")).alias("messages"),
        f.max(f.col("is_retried").cast("long")).alias("retried"),
        release.alias("release_id"),
        *trails.trail(begin, end),
    )


def attempts(singles: DataFrame) -> DataFrame:
    """Single messages by attempt -> as of retries.by_attempt."""
    return singles.where("is_retried").select(*MESSAGE, "attempt", f.lit(1).alias("messages"))
