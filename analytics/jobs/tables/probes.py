"""Lateness of probes, by their own events: they are messages of nobody, and count nowhere else."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from analytics.events import PROBE
from analytics.jobs import schema
from analytics.jobs.tables import accuracy


def is_probe() -> Column:
    return ~f.col("is_malformed") & f.coalesce(f.col("source") == PROBE, f.lit(False))


def lateness(events: DataFrame, day: tuple[datetime, datetime], data_end: datetime) -> DataFrame:
    """Events -> how many probes of the day per topology, bucket of delay, bucket of lateness (null
    unless measured) and whether they arrived; those that are not due yet are left out.
    """
    begin, end = day
    sides = events.where(is_probe()).dropDuplicates(["event_id"]).withColumn("queue", f.lit(""))
    pairs = accuracy.pair(sides.select(*schema.TRIP_COLUMNS, "queue"))
    began_at = f.col("began_at")
    of_day = pairs.where((began_at >= f.lit(begin)) & (began_at < f.lit(end)))
    counted = accuracy.counts(of_day, data_end)
    return (
        counted.where(f.col("has_left") | ~f.col("is_open"))
        .groupBy("broker", "topology", "delay_bucket", "bucket", "has_left")
        .agg(f.sum("messages").alias("messages"))
    )
