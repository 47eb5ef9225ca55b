"""Retried messages: the attempts that ended on a day, and the outcome of the last one.

An attempt counts on the day on which it ended, so that no day waits for the next one: a message
whose retries cross midnight is open on the first day and at risk again from its next attempt on.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from analytics.jobs.tables.accuracy import with_bucket
from analytics.jobs.tables.retries import (
    COUNTED_KINDS,
    GROUP,
    IS_RETRY,
    MOST_GROUPS,
    micros,
    without_numbers,
)

MESSAGE = (*GROUP, "key")
SIDES = (*MESSAGE, "attempt", "is_retry", "entered_us", "left_us", "exit_delay_ms", "history_us")
# Of a message's first failure, by the name of the group.
GROUPS = {
    **{"queue": "death_queue", "reason": "death_reason", "exception": "exception_type"},
    **{"routing key": "routing_key", "publisher": "publisher", "version": "version"},
}


def is_retry() -> Column:
    return f.coalesce(f.expr(IS_RETRY), f.lit(False))


def history_us() -> Column:
    """The first death that x-death has, in microseconds; null where there is none."""
    return f.array_min(f.transform("failures", lambda one: one["began_s"])) * 1_000_000


def sides(each: DataFrame) -> DataFrame:
    """Events without repeats -> the columns SIDES, a row per message with an id and attempt."""
    is_exit = f.col("kind") == "delivered"
    named = each.where(f.col("has_id") & f.col("kind").isin(*COUNTED_KINDS))
    return named.groupBy(*MESSAGE, "attempt").agg(
        f.max(is_retry()).alias("is_retry"),
        f.min(f.when(f.col("kind") == "scheduled", f.col("recorded_us"))).alias("entered_us"),
        f.max(f.when(is_exit, f.col("recorded_us"))).alias("left_us"),
        f.max(f.when(is_exit, f.col("requested_delay_ms"))).alias("exit_delay_ms"),
        f.min(history_us()).alias("history_us"),
    )


def trails(sides: DataFrame, begin: datetime, end: datetime) -> DataFrame:
    """Sides -> per message with an attempt on the day: its first attempt of the day, twice its
    last, plus 1 if it left that attempt; when its failures began and when it last left, in
    microseconds; whether it is retried after the day.
    """
    entered, left = f.col("entered_us"), f.col("left_us")
    is_of_day = f.least(entered, left) < micros(end)
    is_out = f.coalesce(left < micros(end), f.lit(False))
    began = f.coalesce(entered, left - f.coalesce("exit_delay_ms", f.lit(0)) * 1000)
    # In whole seconds: of messages whose first failure is in the log, that line says it better.
    earlier = f.when(f.col("history_us") < micros(begin), f.col("history_us"))

    def of_day(value: Column) -> Column:
        return f.when(is_of_day, value)

    return (
        sides.where("is_retry")
        .groupBy(*MESSAGE)
        .agg(
            f.min(of_day(f.col("attempt"))).alias("first"),
            f.max(of_day(f.col("attempt") * 2 + is_out.cast("long"))).alias("last_twice"),
            f.min(of_day(f.least(began, earlier))).alias("began_us"),
            f.max(f.when(is_out, left)).alias("left_us"),
            f.max(f.greatest(entered, left) >= micros(end)).alias("is_continued"),
        )
        .where(f.col("first").isNotNull())
    )


def with_outcome(trails: DataFrame, ended: DataFrame | None, end: datetime) -> DataFrame:
    """Trails -> with `outcome` and `last`.

    Exhausted: it died or was parked. Recovered: it left its last attempt and did not fail again.
    Else open: `last` is the last attempt that is known to have failed.
    """
    ended_us: Column = f.lit(None).cast("long")
    if ended is not None:
        keys = ended.where("fate = 'died'").select("broker", "key", "ended_us")
        trails, ended_us = trails.join(keys, ["broker", "key"], "left"), f.col("ended_us")
    is_out = f.col("last_twice") % 2 == 1
    outcome = (
        f.when(ended_us < micros(end), "exhausted")
        .when(f.col("is_continued"), "open")
        .when(ended_us.isNotNull(), "exhausted")
        .when(is_out, "recovered")
        .otherwise("open")
    )
    attempt = f.floor(f.col("last_twice") / 2).cast("long")
    still_waits = (f.col("outcome") == "open") & ~is_out
    return trails.withColumn("outcome", outcome).withColumn(
        "last", attempt - still_waits.cast("long")
    )


def outcomes(trails: DataFrame) -> DataFrame:
    """Trails with outcome -> messages per broker, topology, first and last attempt and outcome."""
    return trails.groupBy(*GROUP, "first", "last", "outcome").agg(f.count("*").alias("messages"))


def recoveries(trails: DataFrame) -> DataFrame:
    """Trails with outcome -> recovered messages per broker, topology and bucket of the time from
    the first failure to the last exit.
    """
    took_ms = (f.col("left_us") - f.col("began_us")) / 1000
    recovered = with_bucket(trails.where("outcome = 'recovered'"), took_ms)
    return recovered.groupBy(*GROUP, "bucket").agg(f.count("*").alias("messages"))


def groups(trails: DataFrame, failures: DataFrame, end: datetime) -> DataFrame:
    """Trails with outcome and events -> messages per broker, topology, kind of group, its value,
    first and last attempt and outcome, by each message's first failure on the day.
    """
    is_failure = f.col("kind").isin("scheduled", "died") & (f.col("death_reason") != "")
    firsts = (
        failures.where(f.col("has_id") & is_failure & (f.col("recorded_us") < micros(end)))
        .withColumn("routing_key", without_numbers("routing_key"))
        .groupBy(*MESSAGE)
        .agg(f.min_by(f.struct(*GROUPS.values()), "recorded_us").alias("cause"))
    )
    each = f.array(
        *(
            f.struct(f.lit(name).alias("dimension"), f.col(f"cause.{column}").alias("value"))
            for name, column in GROUPS.items()
        )
    )
    way = ("first", "last", "outcome")
    return (
        trails.join(firsts, list(MESSAGE))
        .select(*GROUP, *way, f.explode(each).alias("group"))
        .select(*GROUP, *way, "group.*")
        .where(f.coalesce("value", f.lit("")) != "")
        .groupBy(*GROUP, "dimension", "value", *way)
        .agg(f.count("*").alias("messages"))
        .orderBy(f.desc("messages"))
        .limit(MOST_GROUPS)
    )
