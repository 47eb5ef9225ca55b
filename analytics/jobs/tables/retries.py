"""Messages, retries and deaths, by the definition in docs/event-log.md ("Retries and deaths").

They are counted from their own records and from later copies: a delivery after a death carries its
history in x-death. Messages without an id and with equal content share a key; as many are counted
as there are copies with the same step.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from analytics.jobs.schema import CAUSE, is_failure, release_id

GROUP = ("broker", "topology")
COUNTED_KINDS = ("scheduled", "delivered", "published", "died")
MOST_CAUSES = 500
MOST_GROUPS = 5000
IS_RETRY = (
    "kind = 'scheduled' and (death_reason != '' or attempt > 1)"
    " or kind = 'delivered' and attempt > 0 and (failures is not null or attempt > 1)"
)


def of_day(events: DataFrame, begin: datetime, end: datetime) -> DataFrame:
    """Events without repeats -> those that count on the day.

    `failures` are null where there are none.
    """
    columns = ("key", "kind", "attempt", "death_reason", "death_queue", "has_id", "failures")
    counted = events.where(f.col("kind").isin(*COUNTED_KINDS) & counts_between(begin, end))
    at_us, release = counted_at_us().alias("at_us"), release_id().alias("release_id")
    return counted.select(*GROUP, *columns, "recorded_us", at_us, release)


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
    """Events of the day -> per broker, topology and key: messages, retried ones, `release_id`, and
    `first_us`, when the message was first seen; null of those without an id, which are not
    distinguished.
    """
    observations = counted.groupBy(*GROUP, "key", "kind", "attempt").agg(
        _copies(f.lit(True)).alias("seen"),
        _copies(f.expr(IS_RETRY)).alias("failed"),
        f.min(f.when(f.col("has_id"), f.col("at_us"))).alias("first_us"),
        f.max("release_id").alias("release_id"),
    )
    return observations.groupBy(*GROUP, "key").agg(
        f.max("seen").alias("messages"),
        f.max("failed").alias("retried"),
        f.min("first_us").alias("first_us"),
        f.max("release_id").alias("release_id"),
    )


def retries(by_trail: DataFrame) -> DataFrame:
    """Messages by trail -> per broker, topology and hour first seen: messages, retried ones."""
    return _sums(by_trail, "hour_at")


def releases(by_trail: DataFrame, known: DataFrame) -> DataFrame:
    """Messages by trail -> per broker, topology, publisher and version (null: not stated):
    messages, retried ones; of `known` names by release_id.
    """
    return (
        _sums(by_trail.where(f.col("release_id").isNotNull()), "release_id")
        .join(known, "release_id")
        .drop("release_id")
        .orderBy(f.desc("messages"))
        .limit(MOST_GROUPS)
    )


def _sums(by_trail: DataFrame, *by: str) -> DataFrame:
    counted = by_trail.where("messages > 0")
    return counted.groupBy(*GROUP, *by).agg(
        f.sum("messages").alias("messages"), f.sum("retried").alias("retried")
    )


def failures(events: DataFrame, begin: datetime, end: datetime) -> DataFrame:
    """Events without repeats -> recorded failures of the day per broker, topology and CAUSE; 0
    where they were on another day.
    """
    return (
        events.where(is_failure())
        .groupBy(*GROUP, *CAUSE)
        .agg(f.count_if(counts_between(begin, end)).alias("messages"))
    )


def causes(failures: DataFrame) -> DataFrame:
    """Failures -> those per queue, reason, exception and routing key, whose numbers and ids are
    replaced; the most frequent ones.
    """
    return (
        failures.where("messages > 0")
        .withColumnsRenamed({"death_queue": "queue", "death_reason": "reason"})
        .groupBy(*GROUP, "queue", "reason", "exception_type", "routing_key")
        .agg(f.sum("messages").alias("messages"))
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
