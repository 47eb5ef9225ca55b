"""Delay accuracy: what entered a delay, paired with what came out, and how late that was.

Lateness runs between two moments of one clock: the recorder's, where both sides were recorded as
they came, or that of a trace. What cannot be measured is counted with its one reason.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as f

from analytics.buckets import DELAY_EDGES_MS, EDGES_MS, FIRST_LOG_BUCKET, MANTISSAS, ON_TIME_MS
from analytics.events import CLOCK_RESOLUTION_MS, TRACE_ID
from analytics.jobs.schema import TRIP_COLUMNS

PLACE = ("broker", "topology", "queue")
GROUP = (*PLACE, "requested_delay_ms")
# Reasons why a delivery is not measured; analytics.models.results has the texts.
NO_ENTRY, NO_DELAY, TWO_CLOCKS, BACKLOG = "no_entry", "no_delay", "two_clocks", "backlog"
REASONS = (NO_ENTRY, NO_DELAY, TWO_CLOCKS, BACKLOG)
PERCENTILES = {"p50_ms": 0.50, "p90_ms": 0.90, "p95_ms": 0.95, "p99_ms": 0.99}
# Time before the end of the data within which a due entry may still be on its way.
GRACE = timedelta(minutes=1)
# Time between entries of messages without an id and with equal content that are paired in order;
# others are paired by their due time.
BURST = timedelta(seconds=1)
EARLY_AT_MOST = timedelta(milliseconds=250)
# What is read of the following day: exits and other ends, entries that exits without an id may
# belong to, and whether a message that left its last attempt failed again.
IS_OF_THE_DAY_BEFORE = """
    kind in ('delivered', 'died', 'parked', 'cancelled', 'moved')
    or kind = 'scheduled' and (not has_id or death_reason != '' or attempt > 1)
"""
# Clocks by which a side is timed.
OWN, IMPORTED, TRACE = 0, 1, 2
MICROSECOND = timedelta(microseconds=1)


def pair(events: DataFrame) -> DataFrame:
    """Sides of trips -> one row per entry and its exit, either of which may be missing.

    Columns: broker, topology, queue ("" of a topology's delays), requested_delay_ms (0: unknown),
    began_at (the entry, else the delay before the exit), due_at, has_left, reason (why an exit is
    not measured; null where it is, or has not come), is_taken (it was timed when a consumer took
    it), lateness_ms (double, to the microsecond; null unless measured), has_entered,
    destination_id (a hash; of a text the aggregation would sort), key (null once it has left).
    """
    trip = ["broker", "topology", "queue", "key", "attempt"]
    is_exit = (f.col("kind") == "delivered") & is_trip()
    sides = events.where(is_entry() | is_exit | (f.col("kind") == "moved")).select(
        *trip,
        "requested_delay_ms",
        "recorded_us",
        "caught_up",
        "event_id",
        is_entry().alias("is_entry"),
        (f.col("kind") == "moved").alias("is_moved"),
        "has_id",
        clock().alias("clock"),
        is_taken().alias("is_taken"),
        f.xxhash64("destination").alias("destination_id"),
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


def is_entry() -> Column:
    """What began to wait, if its exit can be known from deliveries of messages without a delay."""
    return (f.col("kind") == "scheduled") & (f.col("attempt") > 0)


def moves(events: DataFrame, sides: DataFrame) -> DataFrame:
    """Events -> as `sides` of trips the moves of messages that entered one attempt twice: a move
    ends the first of two entries, which else would get the exit of the second. Where the second is
    of a later day, the exit has another delay.

    A fact does not state the attempt: it is the last that was entered twice, from before the move.
    """
    is_exit = (f.col("kind") == "delivered") & is_trip()
    twice = (
        sides.where("has_id")
        .groupBy("broker", "topology", "key", "attempt")
        .agg(
            f.count_if(is_entry()).alias("entries"),
            f.min(f.when(is_entry(), f.col("recorded_us"))).alias("first_us"),
            f.max(f.when(is_entry(), f.col("requested_delay_ms"))).alias("entry_delay_ms"),
            f.max(f.when(is_exit, f.col("requested_delay_ms"))).alias("exit_delay_ms"),
        )
        .where("entries > 1 or exit_delay_ms not in (0, entry_delay_ms)")
    )
    # A fact is recorded again after a kill.
    moved = events.where(~f.col("is_malformed") & f.col("has_id") & (f.col("kind") == "moved"))
    stated = [name for name in TRIP_COLUMNS if name != "attempt"]
    return (
        moved.dropDuplicates(["event_id"])
        .select(*stated)
        .join(twice, ["broker", "topology", "key"])
        .where("first_us <= recorded_us")
        .groupBy(*stated)
        .agg(f.max_by("attempt", "first_us").alias("attempt"))
        .select(*TRIP_COLUMNS)
    )


def is_trip() -> Column:
    """Whether a delivery ended a delay: what passed the topology without one has neither attempt
    nor delay.
    """
    return (f.col("attempt") > 0) | (f.col("requested_delay_ms") > 0)


def clock() -> Column:
    is_import = f.col("source") == "import"
    return f.when(_is_of_trace(), TRACE).when(is_import, IMPORTED).otherwise(OWN)


def is_taken() -> Column:
    return _is_of_trace() | (f.col("source") == "firehose")


def _is_of_trace() -> Column:
    return f.col("event_id").startswith(TRACE_ID)


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

    return compute_lateness(
        numbered.groupBy(*place).agg(
            side("requested_delay_ms", entry=True).alias("entry_delay_ms"),
            side("requested_delay_ms", entry=False).alias("exit_delay_ms"),
            side("recorded_us", entry=True).alias("entered_us"),
            f.max(f.when(~f.col("is_entry") & ~f.col("is_moved"), f.col("recorded_us"))).alias(
                "left_us"
            ),
            side("destination_id", entry=True).alias("entry_destination_id"),
            side("destination_id", entry=False).alias("exit_destination_id"),
            side("clock", entry=True).alias("entry_clock"),
            side("clock", entry=False).alias("exit_clock"),
            side("is_taken", entry=False).alias("is_taken"),
            f.min("caught_up").alias("were_caught_up"),
        )
    )


def compute_lateness(joined: DataFrame) -> DataFrame:
    """An entry and its exit in one row -> the columns of `pair`."""
    # For a queue known from a trace, only the exit contains the delay.
    delay_ms = f.coalesce(
        f.nullif("entry_delay_ms", f.lit(0)), f.col("exit_delay_ms"), f.lit(0).cast("long")
    )
    delay_us = f.col("requested_delay_ms") * 1000
    began_us = f.coalesce("entered_us", f.col("left_us") - delay_us)
    lateness_us = f.col("left_us") - f.col("entered_us") - delay_us
    return (
        joined.withColumn("requested_delay_ms", delay_ms)
        .withColumn("reason", f.when(f.col("left_us").isNotNull(), _reason()))
        .select(
            *GROUP,
            f.timestamp_micros(began_us).alias("began_at"),
            f.timestamp_micros(began_us + delay_us).alias("due_at"),
            f.col("left_us").isNotNull().alias("has_left"),
            "reason",
            "is_taken",
            f.when(f.col("reason").isNull(), lateness_us / 1000).alias("lateness_ms"),
            f.col("entered_us").isNotNull().alias("has_entered"),
            f.coalesce("entry_destination_id", "exit_destination_id").alias("destination_id"),
            f.when(f.col("left_us").isNull(), f.col("key")).alias("key"),
        )
    )


def _reason() -> Column:
    """Why the lateness of an exit is not measured; null when it is. The first that is true."""
    is_of_trace = f.col("exit_clock") == TRACE
    return (
        f.when((f.col("requested_delay_ms") == 0) & (f.col("queue") != ""), NO_DELAY)
        .when(f.col("entered_us").isNull(), NO_ENTRY)
        .when(f.col("entry_clock") != f.col("exit_clock"), TWO_CLOCKS)
        .when(~is_of_trace & ~f.col("were_caught_up"), BACKLOG)
    )


def percentiles(pairs: DataFrame) -> DataFrame:
    """Pairs -> PERCENTILES per broker, topology or queue, and requested delay, where any was
    measured; null of too few for one (analytics.buckets.is_enough).
    """
    # Spark's percentile keeps a map of all values, which costs several times a sorted array.
    in_order = f.sort_array(f.collect_list("lateness_ms")).alias("in_order")
    each = (_percentile(share).alias(name) for name, share in PERCENTILES.items())
    measured = pairs.where(f.col("lateness_ms").isNotNull())
    return measured.groupBy(*GROUP).agg(in_order).select(*GROUP, *each)


def _percentile(share: float) -> Column:
    """The value below which this share of `in_order` is, interpolated between its neighbours."""
    place = (f.size("in_order") - 1) * share
    below = f.get("in_order", f.floor(place).cast("int"))
    above = f.get("in_order", f.ceil(place).cast("int"))
    is_enough = f.round(f.size("in_order") * (1 - share), 6) >= 1
    return f.when(is_enough, below + (above - below) * (place - f.floor(place)))


def by_delay(counts: DataFrame, percentiles: DataFrame) -> DataFrame:
    """Counts and percentiles -> a row per broker, topology or queue, and requested delay (0:
    unknown).

    Every pair is measured, uncounted (it left, and there is a reason), open or missing. `open`
    were not due by the data end; `missing` were, and nobody saw them come out. `taken` of the
    measured ones were timed when a consumer took them. A column of each reason counts its exits.
    """
    is_measured = f.col("bucket").isNotNull()
    has_left, is_open, reason = f.col("has_left"), f.col("is_open"), f.col("reason")
    measured = _messages(is_measured)
    figures = counts.groupBy(*GROUP).agg(
        measured.alias("measured"),
        _messages(is_measured & f.col("is_taken")).alias("taken"),
        f.max("max_ms").alias("max_ms"),
        f.try_divide(f.sum("early"), measured).alias("early_share"),
        _messages(reason.isNotNull()).alias("uncounted"),
        _messages(~has_left & is_open).alias("open"),
        _messages(~has_left & ~is_open).alias("missing"),
        *(_messages(reason == one).alias(one) for one in REASONS),
    )
    return figures.join(percentiles, list(GROUP), "left")


def _messages(condition: Column) -> Column:
    return f.sum(f.when(condition, f.col("messages")).otherwise(0))


def accuracy(by_delay: DataFrame) -> DataFrame:
    """Figures by delay -> those of known delays."""
    is_known = (f.col("queue") == "") | (f.col("requested_delay_ms") > 0)
    return by_delay.where(is_known).drop(*REASONS)


def uncounted(by_delay: DataFrame) -> DataFrame:
    """Figures by delay -> per broker, topology or queue, delay and reason: unmeasured exits."""
    each = f.array(
        *(f.struct(f.lit(one).alias("reason"), f.col(one).alias("messages")) for one in REASONS)
    )
    rows = by_delay.select(*GROUP, f.explode(each).alias("found")).select(*GROUP, "found.*")
    return rows.where("messages > 0")


def _is_open(data_end: datetime) -> Column:
    return f.col("due_at") > f.lit(data_end - GRACE)


def counts(pairs: DataFrame, data_end: datetime) -> DataFrame:
    """Pairs -> how many per requested delay, destination, hour of entry, outcome and bucket of
    lateness (null unless measured), and of how early those before their due time are: all that
    tables of pairs add up, by one pass.

    Buckets are fixed (analytics.buckets), so that hours and days add up.
    """
    lateness = f.col("lateness_ms")
    hour_at = f.date_trunc("hour", "began_at")
    early = f.when(lateness < 0, -lateness)
    return (
        with_bucket(with_bucket(pairs, lateness), early, "early_bucket")
        .groupBy(
            *(*GROUP, "destination_id", "has_entered", "has_left", "is_taken", "reason", "bucket"),
            "early_bucket",
            hour_at.alias("hour_at"),
            _is_open(data_end).alias("is_open"),
        )
        .agg(
            f.count("*").alias("messages"),
            f.max(lateness).alias("max_ms"),
            f.count_if(lateness < -CLOCK_RESOLUTION_MS).alias("early"),
        )
        .withColumn("delay_bucket", delay_bucket())
    )


def delay_bucket() -> Column:
    delay = f.col("requested_delay_ms")
    return sum((f.when(delay >= edge, 1).otherwise(0) for edge in DELAY_EDGES_MS), f.lit(0))


def histogram(counts: DataFrame) -> DataFrame:
    """Counts -> how many measured ones per destination, bucket of delay, hour and bucket."""
    measured = counts.where(f.col("bucket").isNotNull())
    return measured.groupBy(*PLACE, "destination", "delay_bucket", "hour_at", "bucket").agg(
        f.sum("messages").alias("messages")
    )


def early(counts: DataFrame) -> DataFrame:
    """Counts -> how many measured ones were a millisecond early or more, per destination, hour and
    bucket of how early. No TTL ends early: this is the error of what recorded them.
    """
    shown = counts.where(f.col("early_bucket") >= FIRST_LOG_BUCKET).drop("bucket")
    return (
        shown.withColumnRenamed("early_bucket", "bucket")
        .groupBy(*PLACE, "destination", "hour_at", "bucket")
        .agg(f.sum("messages").alias("messages"))
    )


def with_bucket(frame: DataFrame, ms: Column, name: str = "bucket") -> DataFrame:
    """The frame with a column of this name, the number of the bucket of analytics.buckets that
    holds so many milliseconds; null for null.

    In whole microseconds, so that an edge is met exactly; by the decade, since a comparison with
    each of eighty edges would be compiled for every row. Each step is a column of its own, which
    Spark computes once a row; as one expression it would compute all of it for each mantissa.
    """
    us, decade, power = f.col("bucket_us"), f.col("bucket_decade"), f.col("bucket_power")
    # Spark's round goes through BigDecimal, and pow costs as much.
    powers = f.array(*(f.lit(10.0**exponent) for exponent in range(3, 19)))
    passed = sum((f.when(us >= power * digit, 1).otherwise(0) for digit in MANTISSAS), f.lit(-1))
    bucket = (
        f.when(ms < -CLOCK_RESOLUTION_MS, 0)
        .when(ms < ON_TIME_MS, 1)
        .otherwise(
            f.least(FIRST_LOG_BUCKET + decade * len(MANTISSAS) + passed, f.lit(len(EDGES_MS)))
        )
    )
    return (
        frame.withColumn("bucket_us", f.greatest(f.rint(ms * 1000).cast("long"), f.lit(1000)))
        .withColumn("bucket_decade", f.floor(f.log10(us.cast("double"))).cast("int") - 3)
        .withColumn("bucket_power", f.get(powers, decade))
        .withColumn(name, f.when(ms.isNotNull(), bucket.cast("int")))
        .drop("bucket_us", "bucket_decade", "bucket_power")
    )


def by_hour(counts: DataFrame) -> DataFrame:
    """Counts -> per destination and hour of entry: entered, and the outcome.

    Each of `entered` is delivered, waiting or missing; `unpaired` are exits without an entry.
    """
    has_entered, has_left, is_open = (f.col(n) for n in ("has_entered", "has_left", "is_open"))
    return counts.groupBy(*PLACE, "destination", "hour_at").agg(
        _messages(has_entered).alias("entered"),
        _messages(has_entered & has_left).alias("delivered"),
        _messages(~has_left & is_open).alias("waiting"),
        _messages(~has_left & ~is_open).alias("missing"),
        _messages(~has_entered).alias("unpaired"),
    )


def missing(pairs: DataFrame, data_end: datetime) -> DataFrame:
    """Pairs -> those that were due by `data_end` and have no recorded exit, with their key."""
    late = pairs.where(~f.col("has_left") & ~_is_open(data_end))
    return late.select(*PLACE, "destination_id", "key", "began_at", "due_at")
