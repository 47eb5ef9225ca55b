"""Dead letters: how many arrived, and what Delayboard did with them."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from analytics.jobs.schema import OBSERVED
from analytics.jobs.tables.retries import micros

KINDS = ("parked", "replayed", "discarded")
LETTER = ("broker", "queue", "reason", "origin", "exception_type")


def is_dead_letter() -> Column:
    """A recorded death, or what Delayboard did with a dead letter."""
    done = f.col("kind").isin(*KINDS) & (f.col("source") == "delayboard")
    died = (f.col("kind") == "died") & f.col("source").isin(*OBSERVED)
    return ~f.col("is_malformed") & (done | died)


def read(events: DataFrame) -> DataFrame:
    """Events -> one row per dead letter that died or that Delayboard handled."""
    return (
        events.where(is_dead_letter())
        .dropDuplicates(["event_id"])
        .select(
            *("broker", "key", "has_id", "kind", "queue", "recorded_us", "attempt", "replay_id"),
            f.coalesce("death_reason", f.lit("")).alias("reason"),
            f.coalesce("death_queue", f.lit("")).alias("origin"),
            f.coalesce("exception_type", f.lit("")).alias("exception_type"),
            "event_id",
        )
    )


def counts(arrived: DataFrame, end: datetime) -> DataFrame:
    """Dead letters -> per broker, queue, reason, origin, exception and kind: those before `end`."""
    of_day = arrived.where(f.col("recorded_us") < micros(end))
    done = of_day.where(f.col("kind") != "died").groupBy(*LETTER, "kind")
    handled = done.agg(f.count("*").alias("messages"))
    return handled.unionByName(_arrived(of_day))


def _arrived(arrived: DataFrame) -> DataFrame:
    """Of a message the larger of two numbers: its recorded deaths, and how often it was parked.

    Both count the same arrivals, and each may have missed some. The recorder can read the copy of
    a death twice after a crash: of a message with an id each attempt dies once.
    """
    is_death = f.col("kind") == "died"
    trip = f.concat_ws(":", f.col("attempt").cast("string"), "replay_id")
    death = f.when(is_death, f.when(f.col("has_id"), trip).otherwise(f.col("event_id")))
    each = (
        arrived.where(f.col("kind").isin("died", "parked"))
        .groupBy("broker", "key", "reason", "origin")
        .agg(
            f.max("queue").alias("queue"),
            f.max("exception_type").alias("exception_type"),
            f.greatest(f.countDistinct(death), f.count_if(~is_death)).alias("messages"),
        )
    )
    arrived = each.groupBy(*LETTER).agg(f.sum("messages").alias("messages"))
    return arrived.withColumn("kind", f.lit("arrived")).select(*LETTER, "kind", "messages")
