"""Messages, retries and failures, by the definition in docs/event-log.md ("Retries").

They are counted from their own records and from later copies: a delivery after a death carries its
history in x-death. Messages without an id and with equal content share a key; as many are counted
as there are copies with the same step.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
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
    columns = ("key", "kind", "attempt", "death_reason", "has_id", "failures")
    counted = events.where(f.col("kind").isin(*COUNTED_KINDS) & counts_between(begin, end))
    return counted.select(*GROUP, *columns, release_id().alias("release_id"))


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
    """Events of the day -> per broker, topology and key: messages, retried ones, `release_id`."""
    observations = counted.groupBy(*GROUP, "key", "kind", "attempt").agg(
        _copies(f.lit(True)).alias("seen"),
        _copies(f.expr(IS_RETRY)).alias("failed"),
        f.max("release_id").alias("release_id"),
    )
    return observations.groupBy(*GROUP, "key").agg(
        f.max("seen").alias("messages"),
        f.max("failed").alias("retried"),
        f.max("release_id").alias("release_id"),
    )


def retries(by_trail: DataFrame) -> DataFrame:
    """Messages by trail -> per broker and topology: messages, retried ones."""
    return _sums(by_trail)


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
    """Events without repeats -> recorded failures of the day per broker, topology, CAUSE and hour,
    and `first_time`, those that were the first of their message; 0 where they were on another day,
    of which the hour is null.
    """
    is_of_day = counts_between(begin, end)
    hour_at = f.when(is_of_day, f.date_trunc("hour", f.timestamp_micros("recorded_us")))
    return (
        events.where(is_failure())
        .groupBy(*GROUP, *CAUSE, hour_at.alias("hour_at"))
        .agg(
            f.count_if(is_of_day).alias("messages"),
            f.count_if(is_of_day & is_first_time()).alias("first_time"),
        )
    )


def is_first_time() -> Column:
    """Of a failure: x-death counts all, and of what consumers publish again the attempt says it."""
    number = f.aggregate("failures.count", f.lit(0).cast("long"), lambda total, one: total + one)
    return (f.col("kind") == "scheduled") & (f.coalesce(number, f.col("attempt")) == 1)


def by_hour(failures: DataFrame) -> DataFrame:
    """Failures -> those of each broker, topology and hour, and those of the first time."""
    of_day = failures.where("messages > 0")
    return of_day.groupBy(*GROUP, "hour_at").agg(
        f.sum("messages").alias("messages"), f.sum("first_time").alias("first_time")
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


def _copies(condition: Column) -> Column:
    """How many messages the copies of one step are that fulfil it: one where they have an id."""
    number = f.count_if(condition)
    return f.when(f.max("has_id"), f.least(number, f.lit(1))).otherwise(number)


def micros(moment: datetime) -> int:
    return int(moment.timestamp()) * 1_000_000
