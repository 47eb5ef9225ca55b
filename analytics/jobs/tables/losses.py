"""Messages without a recorded exit: dead letters, losses, and lines that repeat another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce
from typing import TypeAlias

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from analytics.jobs.schema import OBSERVED
from analytics.jobs.tables.accuracy import GRACE, is_entry
from analytics.jobs.tables.retries import micros

TOPOLOGY = ("broker", "topology", "queue")
# Ids of unexplained messages that are listed for each topology.
MOST_IDS = 20
KINDS = ("parked", "replayed", "discarded")
# Broker -> the queues into which consumers publish the messages that they give up.
Parking: TypeAlias = Mapping[str, Sequence[str]]
LETTER = ("broker", "queue", "reason", "origin", "exception_type")


def is_end(parking: Parking) -> Column:
    """An event that ends a message without a delivery, or shows that its retries are given up."""
    kind = f.col("kind")
    return ~f.col("is_malformed") & (
        kind.isin("died", "parked", "cancelled", "moved") | is_given_up(parking)
    )


def is_given_up(parking: Parking) -> Column:
    """A publish that the firehose or a trace shows in a parking queue."""
    into = (
        (f.col("broker") == broker) & f.col("queue").isin(*queues)
        for broker, queues in parking.items()
        if queues
    )
    is_into = reduce(Column.__or__, into, f.lit(False))
    return (f.col("kind") == "published") & f.col("source").isin(*OBSERVED) & is_into


def ended(events: DataFrame, parking: Parking) -> DataFrame:
    """Events -> broker, key, fate, `ended_us` and `last_ended_us` (the first and the last time, in
    microseconds) of the messages that died (or were parked), were cancelled, or were only moved;
    `moves` has the topology of each move.

    A parked message belongs to no topology, so that its broker and key name it.
    """
    is_cancelled, is_moved = f.col("kind") == "cancelled", f.col("kind") == "moved"
    return (
        events.where(is_end(parking))
        .groupBy("broker", "key")
        .agg(
            f.max(is_cancelled).alias("is_cancelled"),
            f.min(is_moved).alias("is_only_moved"),
            f.min(f.when(~is_moved, f.col("recorded_us"))).alias("ended_us"),
            f.max(f.when(~is_moved, f.col("recorded_us"))).alias("last_ended_us"),
            f.collect_set(f.when(is_moved, f.struct("event_id", "topology"))).alias("moves"),
        )
        .select(
            "broker",
            "key",
            f.when(f.col("is_cancelled"), "cancelled")
            .when(f.col("is_only_moved"), "moved")
            .otherwise("died")
            .alias("fate"),
            "ended_us",
            "last_ended_us",
            "moves",
        )
    )


def moved(ended: DataFrame) -> DataFrame:
    """What ended -> broker, topology and key of what was moved."""
    topology = f.explode("moves.topology").alias("topology")
    return ended.select("broker", topology, "key")


def with_fate(missing: DataFrame, ended: DataFrame | None) -> DataFrame:
    """Missing messages -> with `fate`: died, cancelled, moved or unexplained.

    A move explains one message of its topology, the first that was due: what took its place can be
    lost there, or in another topology. What ended before the message entered explains nothing: it
    was parked and replayed.
    """
    if ended is None:
        return missing.withColumn("fate", f.lit("unexplained"))
    in_order = Window.partitionBy("broker", "topology", "key").orderBy("due_at")
    moved = f.size(f.filter("moves", lambda move: move["topology"] == f.col("topology")))
    found = missing.join(ended.drop("ended_us"), ["broker", "key"], "left")
    is_moved = f.row_number().over(in_order) <= f.coalesce(moved, f.lit(0))
    is_before = f.timestamp_micros("last_ended_us") < f.col("began_at") - f.lit(GRACE)
    other = f.when((f.col("fate") != "moved") & ~is_before, f.col("fate"))
    fate = f.when(is_moved, "moved").otherwise(f.coalesce(other, f.lit("unexplained")))
    return found.withColumn("fate", fate).drop("moves", "last_ended_us")


def losses(missing: DataFrame, destinations: DataFrame) -> DataFrame:
    """Missing messages with fate -> how many per broker, topology or queue, destination, fate."""
    counted = missing.groupBy(*TOPOLOGY, "destination_id", "fate").agg(
        f.count("*").alias("messages")
    )
    return counted.join(destinations, "destination_id", "left").drop("destination_id")


def possible_repeats(events: DataFrame, begin: datetime, end: datetime) -> DataFrame:
    """Events without repeats -> rows as of `losses` with the fate "repeated": entries of the day
    without an id that the broker delivered again to the recorder. After a crash up to a prefetch of
    them are in the log twice, and nothing tells a second copy from an equal message.
    """
    is_of_day = f.col("recorded_us").between(micros(begin), micros(end) - 1)
    again = events.where(is_entry() & ~f.col("has_id") & f.col("redelivered") & is_of_day)
    return (
        again.groupBy("broker", "topology", "destination")
        .agg(f.count("*").alias("messages"))
        .withColumns({"queue": f.lit(""), "fate": f.lit("repeated")})
    )


def unexplained(missing: DataFrame) -> DataFrame:
    """Missing messages with fate -> the ids of the first unexplained ones of each topology."""
    in_order = Window.partitionBy(*TOPOLOGY).orderBy("due_at", "key")
    return (
        missing.where("fate = 'unexplained'")
        .withColumn("number", f.row_number().over(in_order))
        .where(f.col("number") <= MOST_IDS)
        .select(*TOPOLOGY, "key", "due_at")
    )


def repeats(copies: DataFrame, end: datetime) -> DataFrame:
    """Events as of schema.each_once -> how many lines before `end` repeat another, as one row."""
    of_day = copies.where(f.col("recorded_us") < micros(end))
    lines = f.sum(f.col("copies") - f.col("is_kept").cast("long"))
    return of_day.agg(lines.alias("lines")).withColumn("reason", f.lit("repeat"))


def is_dead_letter() -> Column:
    """A recorded death, or what Delayboard did with a dead letter."""
    done = f.col("kind").isin(*KINDS) & (f.col("source") == "delayboard")
    died = (f.col("kind") == "died") & f.col("source").isin(*OBSERVED)
    return ~f.col("is_malformed") & (done | died)


def read_dead_letters(events: DataFrame) -> DataFrame:
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


def count_dead_letters(arrived: DataFrame, end: datetime) -> DataFrame:
    """Dead letters -> those before `end` per broker, queue, reason, origin, exception, hour and
    kind.
    """
    of_day = arrived.where(f.col("recorded_us") < micros(end))
    done = of_day.where(f.col("kind") != "died").groupBy(*LETTER, _hour_at("recorded_us"), "kind")
    handled = done.agg(f.count("*").alias("messages"))
    return handled.unionByName(_arrived(of_day))


def _arrived(arrived: DataFrame) -> DataFrame:
    """How often a message arrived: the larger number of its recorded deaths and of its parkings.

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
            f.min("recorded_us").alias("first_us"),
            f.greatest(f.countDistinct(death), f.count_if(~is_death)).alias("messages"),
        )
    )
    arrived = each.groupBy(*LETTER, _hour_at("first_us")).agg(f.sum("messages").alias("messages"))
    arrived = arrived.withColumn("kind", f.lit("arrived"))
    return arrived.select(*LETTER, "hour_at", "kind", "messages")


def _hour_at(micros: str) -> Column:
    return f.date_trunc("hour", f.timestamp_micros(micros)).alias("hour_at")
