"""The log as Spark reads it: the schema of its lines, and the days as DataFrames."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from analytics.events import FIELDS, TRACE_ID, FieldType
from analytics.log import day_files

CORRUPT = "_corrupt_record"
TYPES: dict[FieldType, DataType] = {
    "text": StringType(),
    "integer": LongType(),
    "boolean": BooleanType(),
    "moment": TimestampType(),
    "moment or null": TimestampType(),
}
# What happened in the broker, the best source first; Delayboard's own facts tell of the same
# messages again.
OBSERVED = ("tap", "firehose", "import")
TRIP_COLUMNS = (
    *("broker", "topology", "key", "attempt", "kind", "message_id", "event_id", "source"),
    *("requested_delay_ms", "recorded_us", "caught_up"),
)
KNOWN_SOURCES = (*OBSERVED, "delayboard")


def event_schema() -> StructType:
    """One column per field of MessageEvent, and one for lines that are none."""
    fields = [StructField(name, TYPES[kind]) for name, kind in FIELDS.items()]
    return StructType([*fields, StructField(CORRUPT, StringType())])


def read_lines(spark: SparkSession, log: Path, days: Sequence[date]) -> DataFrame:
    """All lines of these days, the unreadable ones with `_corrupt_record` set."""
    paths = [as_it_is(path) for day in days for path in day_files(log, day)]
    if not paths:
        return spark.createDataFrame([], event_schema())
    return spark.read.json(
        paths,
        schema=event_schema(),
        mode="PERMISSIVE",
        columnNameOfCorruptRecord=CORRUPT,
    )


def as_it_is(path: Path) -> str:
    """The path for Spark's readers, which take a bracket or a star in it for a pattern."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", str(path))


def is_malformed() -> Column:
    """A line that is no JSON, holds a field of a wrong type, or lacks what every event has."""
    lacking = f.col("recorded_at").isNull() | f.col("kind").isNull() | f.col("event_id").isNull()
    return f.col(CORRUPT).isNotNull() | lacking


def observed(lines: DataFrame) -> DataFrame:
    """Lines -> what was seen of topologies, each once, with `key` and `recorded_us` added.

    What belongs to no topology, as most of what a firehose tells, is left out.
    The recorder reads copies again after a crash. A second copy of a message with an id, of
    the same kind, attempt and replay, that the broker marked as redelivered is such a repeat
    (4.3 marks a rejected message's copy so at its first read too). What two sources tell of, as a
    tap and an imported trace do, the better one tells alone: of a message with an id that one, of
    those without an id all of the same hour.
    """
    events = (
        lines.where(~is_malformed() & f.col("source").isin(*OBSERVED) & (f.col("topology") != ""))
        .withColumn("key", _key())
        .withColumn("recorded_us", f.unix_micros("recorded_at"))
        .dropDuplicates(["event_id"])
        .withColumn("rank", f.array_position(f.lit(list(OBSERVED)), f.col("source")))
    )
    named = "if(message_id != '', key, string(date_trunc('hour', recorded_at)))"
    same = f"partition by broker, topology, kind, {named}, attempt, replay_id"
    number = f"row_number() over ({same} order by rank, redelivered, recorded_us, event_id)"
    is_repeat = (f.col("message_id") != "") & f.col("redelivered") & (f.col("sighting") > 1)
    return (
        events.withColumn("sighting", f.expr(number))
        .withColumn("best", f.expr(f"min(rank) over ({same})"))
        .where(~is_repeat & (f.col("rank") == f.col("best")))
        .drop("sighting", "best", "rank")
    )


def trips(events: DataFrame, lines: DataFrame) -> DataFrame:
    """Observed events and all lines -> the sides of trips, with `queue`, "" of a topology's own.

    Beside the topologies' these are the trips through queues that are known from a trace alone: a
    publish that reached one queue, and the delivery of what expired in that queue.
    """
    traced = (
        lines.where(~is_malformed() & f.col("event_id").startswith(TRACE_ID))
        .where((f.col("source") == "import") & (f.col("topology") == ""))
        .dropDuplicates(["event_id"])
        .withColumn("key", _key())
        .withColumn("recorded_us", f.unix_micros("recorded_at"))
        .select(*TRIP_COLUMNS, "queue", "death_queue", "death_reason")
    )
    exits = traced.where("kind = 'delivered' and death_reason = 'expired' and death_queue != ''")
    exits = exits.withColumn("queue", f.col("death_queue"))
    exits = exits.withColumn("attempt", f.greatest("attempt", f.lit(1)))
    entries = traced.where("kind = 'published' and queue != ''").join(
        exits.select("broker", "queue").distinct(), ["broker", "queue"], "left_semi"
    )
    entries = entries.withColumns({"kind": f.lit("scheduled"), "attempt": f.lit(1)})
    columns = (*TRIP_COLUMNS, "queue")
    own = events.withColumn("queue", f.lit("")).select(*columns)
    return own.unionAll(entries.select(*columns)).unionAll(exits.select(*columns))


def _key() -> Column:
    return f.coalesce(f.nullif("message_id", f.lit("")), "content_id")
