"""Retried messages: the attempts that ended on a day, and the outcome of the last one.

An attempt counts on the day on which it ended, so that no day waits for the next one: a message
whose retries cross midnight is open on the first day and at risk again from its next attempt on.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from analytics.jobs.schema import MESSAGE, cause_id, is_failure
from analytics.jobs.tables.accuracy import with_bucket
from analytics.jobs.tables.retries import COUNTED_KINDS, GROUP, IS_RETRY, MOST_GROUPS, micros

# Name of a group -> the column of a message's first failure.
GROUPS = {
    **{"queue": "death_queue", "reason": "death_reason", "exception": "exception_type"},
    **{"routing key": "routing_key", "publisher": "publisher", "version": "version"},
}


def is_retry() -> Column:
    return f.coalesce(f.expr(IS_RETRY), f.lit(False))


def history_us() -> Column:
    """The first death that x-death has, in microseconds; null where there is none."""
    return f.array_min(f.col("failures.began_s")) * 1_000_000


def failure(end: datetime) -> tuple[Column, Column]:
    """The time of an event's failure if it is before `end`, else null, and its cause_id."""
    failed_us = f.when(is_failure() & (f.col("recorded_us") < micros(end)), f.col("recorded_us"))
    return failed_us.alias("failed_us"), f.when(is_failure(), cause_id()).alias("cause_id")


def first_failure() -> tuple[Column, Column]:
    """The time of the first failure of events with their `failure`, and its cause_id."""
    return (
        f.min("failed_us").alias("failed_us"),
        f.min_by("cause_id", "failed_us").alias("cause_id"),
    )


def sides(each: DataFrame, end: datetime) -> DataFrame:
    """Events without repeats -> per message with an id and attempt what `trail` adds up."""
    is_exit = f.col("kind") == "delivered"
    named = each.where(f.col("has_id") & f.col("kind").isin(*COUNTED_KINDS))
    return (
        named.select("*", *failure(end))
        .groupBy(*MESSAGE, "attempt")
        .agg(
            f.max(is_retry()).alias("is_retry"),
            f.min(f.when(f.col("kind") == "scheduled", f.col("recorded_us"))).alias("entered_us"),
            f.max(f.when(is_exit, f.col("recorded_us"))).alias("left_us"),
            f.max(f.when(is_exit, f.col("requested_delay_ms"))).alias("exit_delay_ms"),
            f.min(history_us()).alias("history_us"),
            *first_failure(),
        )
    )


def trail(begin: datetime, end: datetime) -> tuple[Column, ...]:
    """Of a message's attempts: its first attempt of the day (null without one), twice its last,
    plus 1 if it left that attempt; when its failures began and when it last left, in microseconds;
    whether it is retried after the day; the cause of its first failure.
    """
    entered, left = f.col("entered_us"), f.col("left_us")
    is_retry, is_of_day = f.col("is_retry"), f.least(entered, left) < micros(end)
    is_out = f.coalesce(left < micros(end), f.lit(False))
    began = f.coalesce(entered, left - f.coalesce("exit_delay_ms", f.lit(0)) * 1000)
    # In whole seconds: of messages whose first failure is in the log, that line says it better.
    earlier = f.when(f.col("history_us") < micros(begin), f.col("history_us"))

    def of_day(value: Column) -> Column:
        return f.when(is_retry & is_of_day, value)

    return (
        f.min(of_day(f.col("attempt"))).alias("first"),
        f.max(of_day(f.col("attempt") * 2 + is_out.cast("long"))).alias("last_twice"),
        f.min(of_day(f.least(began, earlier))).alias("began_us"),
        f.max(f.when(is_retry & is_out, left)).alias("left_us"),
        f.max(is_retry & (f.greatest(entered, left) >= micros(end))).alias("is_continued"),
        f.min_by("cause_id", "failed_us").alias("cause_id"),
    )


def trails(sides: DataFrame, begin: datetime, end: datetime) -> DataFrame:
    """Sides -> the trail of each message with an attempt on the day."""
    return sides.groupBy(*MESSAGE).agg(*trail(begin, end)).where(f.col("first").isNotNull())


def with_outcome(messages: DataFrame, ended: DataFrame | None, end: datetime) -> DataFrame:
    """Messages with their trail -> with `outcome` and `last`, null without a trail.

    Exhausted: it died, was parked or went to a parking queue. Left: it left its last attempt, and
    nothing shows that it failed again. Else open: `last` is the last attempt that is known to have
    failed.
    """
    ended_us: Column = f.lit(None).cast("long")
    if ended is not None:
        keys = ended.where("fate = 'died'").select("broker", "key", "ended_us")
        messages, ended_us = messages.join(keys, ["broker", "key"], "left"), f.col("ended_us")
    is_out = f.col("last_twice") % 2 == 1
    outcome = (
        f.when(f.col("first").isNull(), None)
        .when(ended_us < micros(end), "exhausted")
        .when(f.col("is_continued"), "open")
        .when(ended_us.isNotNull(), "exhausted")
        .when(is_out, "left")
        .otherwise("open")
    )
    attempt = f.floor(f.col("last_twice") / 2).cast("long")
    still_waits = (f.col("outcome") == "open") & ~is_out
    return messages.withColumn("outcome", outcome).withColumn(
        "last", attempt - still_waits.cast("long")
    )


def by_trail(messages: DataFrame) -> DataFrame:
    """Messages with outcome -> per broker, topology, release, first and last attempt, outcome,
    `bucket` of the time from the first failure to the last exit (null unless it
    left) and cause: `messages`, `retried` ones, and `trails`, those with an outcome. All that
    tables of messages add up, by one pass.
    """
    took_ms = f.when(f.col("outcome") == "left", (f.col("left_us") - f.col("began_us")) / 1000)
    return (
        with_bucket(messages, took_ms)
        .groupBy(*GROUP, "release_id", "first", "last", "outcome", "bucket", "cause_id")
        .agg(
            f.sum("messages").alias("messages"),
            f.sum("retried").alias("retried"),
            f.count("outcome").alias("trails"),
        )
    )


def outcomes(by_trail: DataFrame) -> DataFrame:
    """Messages by trail -> per broker, topology, first and last attempt and outcome."""
    return _trails(by_trail.where("outcome is not null"), "first", "last", "outcome")


def recoveries(by_trail: DataFrame) -> DataFrame:
    """Messages by trail -> those that left, per broker, topology and bucket."""
    return _trails(by_trail.where("outcome = 'left'"), "bucket")


def _trails(by_trail: DataFrame, *by: str) -> DataFrame:
    return by_trail.groupBy(*GROUP, *by).agg(f.sum("trails").alias("messages"))


def groups(by_trail: DataFrame, failures: DataFrame) -> DataFrame:
    """Messages by trail and failures -> messages per broker, topology, kind of group, its value,
    first and last attempt and outcome, by each message's first failure on the day.
    """
    named = failures.withColumn("cause_id", cause_id()).dropDuplicates(["cause_id"])
    each = f.array(
        *(
            f.struct(f.lit(name).alias("dimension"), f.col(column).alias("value"))
            for name, column in GROUPS.items()
        )
    )
    trail = ("first", "last", "outcome")
    return (
        _trails(by_trail.where("outcome is not null"), *trail, "cause_id")
        .join(named.drop(*GROUP, "hour_at", "messages"), "cause_id")
        .select(*GROUP, *trail, "messages", f.explode(each).alias("group"))
        .select(*GROUP, *trail, "messages", "group.*")
        .where(f.coalesce("value", f.lit("")) != "")
        .groupBy(*GROUP, "dimension", "value", *trail)
        .agg(f.sum("messages").alias("messages"))
        .orderBy(f.desc("messages"))
        .limit(MOST_GROUPS)
    )
