"""Messages, retries and deaths, by the definition in docs/event-log.md ("Retries and deaths").

They are counted from what recorded them and from what a later copy proves: a delivery after a
death carries its history in x-death. A message without an id shares its key with others of equal
content, so that as many are counted as copies tell of the same step.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from analytics.jobs.accuracy import bucket_of

GROUP = ("broker", "topology")
COUNTED_KINDS = ("scheduled", "delivered", "published", "died")
MOST_CAUSES = 500
UUID = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
IS_RETRY = (
    "kind = 'scheduled' and (death_reason != '' or attempt > 1)"
    " or kind = 'delivered' and attempt > 0 and (failures is not null or attempt > 1)"
)


def of_day(events: DataFrame, begin: datetime, end: datetime) -> DataFrame:
    """Events without repeats -> those that count on the day.

    `failures` are (queue, reason, count, began_s) of x-death, null where there are none.
    """
    columns = ("key", "kind", "attempt", "death_reason", "death_queue", "has_id", "failures")
    counted = events.where(f.col("kind").isin(*COUNTED_KINDS) & counts_between(begin, end))
    return counted.select(*GROUP, *columns, "recorded_us", counted_at_us().alias("at_us"))


def counts_between(begin: datetime, end: datetime) -> Column:
    """A delivery counts when its trip began, `requested_delay_ms` before: the failure that it
    proves was before that.
    """
    return counted_at_us().between(micros(begin), micros(end) - 1)


def counted_at_us() -> Column:
    """When a copy counts, in microseconds."""
    waited_us = f.when(f.col("kind") == "delivered", f.col("requested_delay_ms") * 1000)
    return f.col("recorded_us") - f.coalesce(waited_us, f.lit(0))


def by_message(counted: DataFrame) -> DataFrame:
    """Events of the day -> per broker, topology and key: messages, retried ones, and `first_us`,
    when the message was first seen; null of those without an id, which are not told apart.
    """
    sightings = counted.groupBy(*GROUP, "key", "kind", "attempt").agg(
        _copies(f.lit(True)).alias("seen"),
        _copies(f.expr(IS_RETRY)).alias("failed"),
        f.min(f.when(f.col("has_id"), f.col("at_us"))).alias("first_us"),
    )
    return sightings.groupBy(*GROUP, "key").agg(
        f.max("seen").alias("messages"),
        f.max("failed").alias("retried"),
        f.min("first_us").alias("first_us"),
    )


def retries(messages: DataFrame) -> DataFrame:
    """Messages by key -> per broker, topology and hour first seen: messages, retried ones."""
    hour_at = f.date_trunc("hour", f.timestamp_micros("first_us"))
    return (
        messages.withColumn("hour_at", hour_at)
        .groupBy(*GROUP, "hour_at")
        .agg(f.sum("messages").alias("messages"), f.sum("retried").alias("retried"))
    )


def trails(counted: DataFrame, end: datetime) -> DataFrame:
    """Events of the day -> per retried message with an id: its first attempt, twice its last, plus
    1 if the message left that attempt before `end`; when it began and last left, in microseconds.
    """
    is_out = (f.col("kind") == "delivered") & (f.col("recorded_us") < micros(end))
    return (
        counted.where(f.col("has_id") & f.expr(IS_RETRY))
        .groupBy(*GROUP, "key")
        .agg(
            f.min("attempt").alias("first"),
            f.max(f.col("attempt") * 2 + is_out.cast("long")).alias("last_twice"),
            f.min("at_us").alias("began_us"),
            f.max(f.when(is_out, f.col("recorded_us"))).alias("left_us"),
        )
    )


def with_outcome(trails: DataFrame, ended: DataFrame | None) -> DataFrame:
    """Trails -> with `last` and `outcome`: exhausted (it died or was parked), recovered (it left
    its last attempt and did not fail again), else open.
    """
    if ended is not None:
        keys = ended.where("fate = 'died'").select("broker", "key", f.lit(True).alias("has_ended"))
        trails = trails.join(keys, ["broker", "key"], "left")
    else:
        trails = trails.withColumn("has_ended", f.lit(None).cast("boolean"))
    outcome = (
        f.when(f.col("has_ended"), "exhausted")
        .when(f.col("last_twice") % 2 == 1, "recovered")
        .otherwise("open")
    )
    last = f.floor(f.col("last_twice") / 2).cast("long")
    return trails.withColumns({"last": last, "outcome": outcome})


def outcomes(trails: DataFrame) -> DataFrame:
    """Trails with outcome -> messages per broker, topology, first and last attempt and outcome."""
    return trails.groupBy(*GROUP, "first", "last", "outcome").agg(f.count("*").alias("messages"))


def recoveries(trails: DataFrame) -> DataFrame:
    """Trails with outcome -> recovered messages per broker, topology and bucket of the time from
    the first failure to the last exit.
    """
    took_ms = (f.col("left_us") - f.col("began_us")) / 1000
    recovered = trails.where("outcome = 'recovered'").withColumn("bucket", bucket_of(took_ms))
    return recovered.groupBy(*GROUP, "bucket").agg(f.count("*").alias("messages"))


def causes(events: DataFrame, begin: datetime, end: datetime) -> DataFrame:
    """Events without repeats -> recorded failures of the day per queue, reason, exception and
    routing key, whose numbers and ids are replaced; the most frequent ones.
    """
    key = f.regexp_replace(f.substring("routing_key", 1, 255), UUID, "{id}")
    return (
        events.where(f.col("kind").isin("scheduled", "died") & (f.col("death_reason") != ""))
        .where(counts_between(begin, end))
        .withColumn("routing_key", f.regexp_replace(key, r"\d+", "{n}"))
        .withColumnsRenamed({"death_queue": "queue", "death_reason": "reason"})
        .groupBy(*GROUP, "queue", "reason", "exception_type", "routing_key")
        .agg(f.count("*").alias("messages"))
        .orderBy(f.desc("messages"))
        .limit(MOST_CAUSES)
    )


def by_attempt(counted: DataFrame) -> DataFrame:
    """Events of the day -> per broker, topology, key and attempt: the messages retried in it."""
    by_kind = (
        counted.where(IS_RETRY)
        .groupBy(*GROUP, "key", "attempt", "kind")
        .agg(_copies(f.lit(True)).alias("messages"))
    )
    return by_kind.groupBy(*GROUP, "key", "attempt").agg(f.max("messages").alias("messages"))


def attempts(messages: DataFrame) -> DataFrame:
    """Messages by key and attempt -> per broker, topology and attempt."""
    return messages.groupBy(*GROUP, "attempt").agg(f.sum("messages").alias("messages"))


def by_death(counted: DataFrame, begin: datetime) -> DataFrame:
    """Events of the day, which begins then -> per broker, topology, key, queue and reason: deaths.

    Of a message the larger of two numbers: deaths that were recorded, and those that x-death
    proves. Both count the same deaths, and each may have missed some.
    """
    of_message = (*GROUP, "key", "queue", "reason")
    recorded = (
        counted.where("kind in ('scheduled', 'died') and death_reason != ''")
        .withColumnsRenamed({"death_queue": "queue", "death_reason": "reason"})
        .groupBy(*of_message)
        .agg(f.count("*").alias("deaths"))
    )
    return (
        recorded.union(_proven(counted, begin))
        .groupBy(*of_message)
        .agg(f.max("deaths").alias("deaths"))
    )


def deaths(by_key: DataFrame) -> DataFrame:
    """Deaths by key -> per broker, topology, reason and queue."""
    return by_key.groupBy(*GROUP, "reason", "queue").agg(f.sum("deaths").alias("deaths"))


def _proven(counted: DataFrame, begin: datetime) -> DataFrame:
    """Per message, queue and reason the deaths that histories prove, in the columns of `recorded`.

    A history is known by the time of its first death: a message that is published again from 4.0 on
    begins another. A count n proves the deaths 1 to n, of a history that is older than the day its
    last one. How many messages died the nth time is the most copies of a count from n on.
    """
    history = [*GROUP, "key", "queue", "reason", "began_s"]
    steps = (
        counted.select("*", f.explode("failures").alias("failure"))
        .select("*", "failure.*")
        .groupBy(*history, "count", "kind", "attempt")
        .agg(_copies(f.lit(True)).alias("seen"))
        .groupBy(*history, "count")
        .agg(f.max("seen").alias("seen"))
    )
    by_count = Window.partitionBy(*history).orderBy("count")
    from_here = by_count.rowsBetween(Window.currentRow, Window.unboundedFollowing)
    before = f.coalesce(f.lag("count").over(by_count), f.lit(0))
    is_older = f.coalesce(f.col("began_s") < int(begin.timestamp()), f.lit(False))
    first = f.when(is_older, f.greatest(before, f.col("count") - 1)).otherwise(before)
    messages = f.when(is_older, f.col("seen")).otherwise(f.max("seen").over(from_here))
    return (
        steps.withColumn("deaths", (f.col("count") - first) * messages)
        .groupBy(*GROUP, "key", "queue", "reason")
        .agg(f.sum("deaths").alias("deaths"))
    )


def _copies(condition: Column) -> Column:
    """How many messages the copies of one step are that fulfil it: one where they have an id."""
    number = f.count_if(condition)
    return f.when(f.max("has_id"), f.least(number, f.lit(1))).otherwise(number)


def micros(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000
