"""Retry rates: how many messages failed, how often, and what they died of.

A retry is an entry into the delay that came by a death (the work queue's, not the delay's
own end). Messages with an id are counted once each; of those without, which share their
content, as many are counted as passed one place in one attempt.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

GROUP = ("broker", "topology")
HAS_ID = "message_id != ''"
IS_RETRY = "kind = 'scheduled' and death_reason != ''"


def retries(events: DataFrame) -> DataFrame:
    """Observed events -> per broker and topology: messages seen, retried ones, their share."""
    sightings = (
        events.where(f.col("kind").isin("scheduled", "delivered", "published"))
        .groupBy(*GROUP, "key", "kind", "attempt")
        .agg(
            f.max(f.expr(HAS_ID)).alias("has_id"),
            f.count("*").alias("seen"),
            f.count_if(f.expr(IS_RETRY)).alias("failed"),
        )
    )
    by_key = sightings.groupBy(*GROUP, "key").agg(
        f.max(f.expr("if(has_id, 1, seen)")).alias("messages"),
        f.max(f.expr("if(has_id, least(failed, 1), failed)")).alias("retried"),
    )
    return (
        by_key.groupBy(*GROUP)
        .agg(f.sum("messages").alias("messages"), f.sum("retried").alias("retried"))
        .withColumn("retried_share", f.col("retried") / f.col("messages"))
    )


def attempts(events: DataFrame) -> DataFrame:
    """Observed events -> per broker, topology and attempt: the messages retried in it."""
    with_id = f.count_distinct(f.when(f.expr(HAS_ID), f.col("key")))
    return (
        events.where(IS_RETRY)
        .groupBy(*GROUP, "attempt")
        .agg((with_id + f.count_if(~f.expr(HAS_ID))).alias("messages"))
    )


def deaths(events: DataFrame) -> DataFrame:
    """Observed events -> per broker, topology, reason and queue: deaths, not messages."""
    return (
        events.where(IS_RETRY)
        .groupBy(*GROUP, f.col("death_reason").alias("reason"), f.col("death_queue").alias("queue"))
        .agg(f.count("*").alias("deaths"))
    )
