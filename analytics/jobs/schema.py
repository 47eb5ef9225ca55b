"""The log as Spark reads it: the schema of its lines, and the days as DataFrames."""

from __future__ import annotations

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

from analytics.events import FIELDS, FieldType
from analytics.log import day_files

CORRUPT = "_corrupt_record"
TYPES: dict[FieldType, DataType] = {
    "text": StringType(),
    "integer": LongType(),
    "boolean": BooleanType(),
    "moment": TimestampType(),
    "moment or null": TimestampType(),
}
# What happened in the broker; Delayboard's own facts tell of the same messages again.
OBSERVED = ("tap", "firehose", "import")


def event_schema() -> StructType:
    """One column per field of MessageEvent, and one for lines that are none."""
    fields = [StructField(name, TYPES[kind]) for name, kind in FIELDS.items()]
    return StructType([*fields, StructField(CORRUPT, StringType())])


def read_lines(spark: SparkSession, log: Path, days: Sequence[date]) -> DataFrame:
    """All lines of these days, the unreadable ones with `_corrupt_record` set."""
    paths = [str(path) for day in days for path in day_files(log, day)]
    if not paths:
        return spark.createDataFrame([], event_schema())
    return spark.read.json(
        paths,
        schema=event_schema(),
        mode="PERMISSIVE",
        columnNameOfCorruptRecord=CORRUPT,
    )


def is_malformed() -> Column:
    """A line that is no JSON, holds a field of a wrong type, or lacks what every event has."""
    lacking = f.col("recorded_at").isNull() | f.col("kind").isNull() | f.col("event_id").isNull()
    return f.col(CORRUPT).isNotNull() | lacking


def observed(lines: DataFrame) -> DataFrame:
    """Lines -> what was seen in the broker, each once, with `key` and `recorded_us` added.

    The recorder reads copies again after a crash. A second copy of a message with an id, of
    the same kind, attempt and replay, that the broker marked as redelivered is such a repeat
    (4.3 marks a rejected message's copy so at its first read too).
    """
    events = (
        lines.where(~is_malformed() & f.col("source").isin(*OBSERVED))
        .withColumn("key", f.coalesce(f.nullif("message_id", f.lit("")), "content_id"))
        .withColumn("recorded_us", f.unix_micros("recorded_at"))
        .dropDuplicates(["event_id"])
    )
    sightings = "broker, topology, kind, key, attempt, replay_id"
    number = f.expr(
        f"row_number() over (partition by {sightings} order by redelivered, recorded_us, event_id)"
    )
    is_repeat = (f.col("message_id") != "") & f.col("redelivered") & (f.col("sighting") > 1)
    return events.withColumn("sighting", number).where(~is_repeat).drop("sighting")
