"""Delay accuracy: what entered a delay, paired with what came out, and how late that was.

Lateness runs between two recordings on the recorder's one clock, so only pairs of which
both sides were recorded as they came are measured; the others are counted.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as f

from analytics.events import CLOCK_RESOLUTION_MS

GROUP = ("broker", "topology", "requested_delay_ms")
PERCENTILES = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99}
# An entry that was due this shortly before the data end may still be on its way.
GRACE = timedelta(minutes=1)
# Messages without an id that share their content are told apart by time alone: those that
# enter within this distance of each other are paired in order, others by their due time.
BURST = timedelta(seconds=1)
EARLY_AT_MOST = timedelta(milliseconds=250)
# Of the days that follow: the exits, and the entries that exits without an id may belong to.
TELLS_OF_THE_DAY_BEFORE = "kind = 'delivered' or (kind = 'scheduled' and message_id = '')"
BUCKET_EDGES_MS = (
    -CLOCK_RESOLUTION_MS,
    0,
    *(digit * 10**power for power in range(8) for digit in (1, 2, 5)),
)
MICROSECOND = timedelta(microseconds=1)


def pair(events: DataFrame) -> DataFrame:
    """Observed events -> one row per entry, with its exit where there is one.

    Columns: broker, topology, requested_delay_ms, entered_at, due_at, is_measured (both
    sides were caught up), lateness_ms (double, to the microsecond; null without an exit).
    """
    trip = ["broker", "topology", "key", "attempt"]
    is_entry = f.col("kind") == "scheduled"
    sides = events.where(f.col("kind").isin("scheduled", "delivered")).select(
        *trip,
        "requested_delay_ms",
        "recorded_us",
        "recorded_at",
        "caught_up",
        "event_id",
        is_entry.alias("is_entry"),
        (f.col("message_id") != "").alias("has_id"),
    )
    in_time = Window.partitionBy(*trip).orderBy("order_us", f.desc("is_entry"), "event_id")
    in_burst = Window.partitionBy(*trip, "burst", "is_entry").orderBy("recorded_us", "event_id")
    numbered = (
        sides.withColumn("order_us", _order(is_entry=f.col("is_entry")))
        .withColumn("opens", _opens_burst(in_time).cast("int"))
        .withColumn("burst", f.sum("opens").over(in_time))
        .withColumn("number", f.row_number().over(in_burst))
    )
    return _joined(numbered, [*trip, "burst", "number"])


def _order(*, is_entry: Column) -> Column:
    """When a side counts: with an id, as recorded; else an exit counts as it was due to enter.

    A message cannot leave before it entered, and with an id nothing else can be meant.
    """
    entered_us = (
        f.col("recorded_us") - f.col("requested_delay_ms") * 1000 + EARLY_AT_MOST // MICROSECOND
    )
    return f.when(is_entry | f.col("has_id"), f.col("recorded_us")).otherwise(entered_us)


def _opens_burst(in_time: WindowSpec) -> Column:
    before = in_time.rowsBetween(Window.unboundedPreceding, -1)
    previous = f.max(f.when(f.col("is_entry"), f.col("order_us"))).over(before)
    is_apart = ~f.col("has_id") & (f.col("order_us") - previous > BURST // MICROSECOND)
    return f.col("is_entry") & (previous.isNull() | is_apart)


def _joined(numbered: DataFrame, place: list[str]) -> DataFrame:
    def side(column: str, *, entry: bool) -> Column:
        return f.max(f.when(f.col("is_entry") == f.lit(entry), f.col(column)))

    delay = f.col("requested_delay_ms")
    return (
        numbered.groupBy(*place)
        .agg(
            side("requested_delay_ms", entry=True).alias("requested_delay_ms"),
            side("recorded_at", entry=True).alias("entered_at"),
            side("recorded_us", entry=True).alias("entered_us"),
            side("recorded_us", entry=False).alias("left_us"),
            f.min("caught_up").alias("is_measured"),
        )
        .where(f.col("entered_us").isNotNull())
        .select(
            *GROUP,
            "entered_at",
            f.timestamp_micros(f.col("entered_us") + delay * 1000).alias("due_at"),
            "is_measured",
            ((f.col("left_us") - f.col("entered_us") - delay * 1000) / 1000).alias("lateness_ms"),
        )
    )


def accuracy(pairs: DataFrame, data_end: datetime) -> DataFrame:
    """Pairs -> one row per broker, topology and requested delay.

    `measured + uncounted + open + missing` is the number of entries. `open` were not due
    by `data_end`; `missing` were, and nobody saw them come out.
    """
    has_left = f.col("lateness_ms").isNotNull()
    is_open = f.col("due_at") > f.lit(data_end - GRACE)
    lateness = f.when(f.col("is_measured"), f.col("lateness_ms"))
    return pairs.groupBy(*GROUP).agg(
        f.count(lateness).alias("measured"),
        *(f.percentile(lateness, f.lit(p)).alias(name) for name, p in PERCENTILES.items()),
        f.max(lateness).alias("max_ms"),
        f.avg((lateness < -CLOCK_RESOLUTION_MS).cast("double")).alias("early_share"),
        f.count_if(has_left & ~f.col("is_measured")).alias("uncounted"),
        f.count_if(~has_left & is_open).alias("open"),
        f.count_if(~has_left & ~is_open).alias("missing"),
    )


def histogram(pairs: DataFrame) -> DataFrame:
    """Pairs -> how many measured ones per hour of entry and bucket of lateness.

    Buckets are fixed, so that hours and days add up: from_ms <= lateness < to_ms, null at
    the open ends.
    """
    edges = f.array(*(f.lit(float(edge)) for edge in BUCKET_EDGES_MS))
    lateness = f.col("lateness_ms")
    return (
        pairs.where(f.col("is_measured") & lateness.isNotNull())
        .withColumn("hour_at", f.date_trunc("hour", "entered_at"))
        .withColumn("from_ms", f.array_max(f.filter(edges, lambda edge: edge <= lateness)))
        .withColumn("to_ms", f.array_min(f.filter(edges, lambda edge: edge > lateness)))
        .groupBy(*GROUP, "hour_at", "from_ms", "to_ms")
        .agg(f.count("*").alias("messages"))
    )
