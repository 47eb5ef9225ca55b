"""The log as Spark reads it: its lines, narrow rows of what was observed, the sides of trips."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import reduce
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from analytics.compacted import DayInput
from analytics.events import FIELDS, PROBE, TRACE_ID, FieldType

CORRUPT = "_corrupt_record"
TYPES: dict[FieldType, DataType] = {
    "text": StringType(),
    "integer": LongType(),
    "boolean": BooleanType(),
    "moment": TimestampType(),
    "moment or null": TimestampType(),
    "list of failures": ArrayType(
        StructType(
            [
                StructField("queue", StringType()),
                StructField("reason", StringType()),
                StructField("count", LongType()),
                StructField("began_s", LongType()),
            ]
        )
    ),
}
# Fields that figures need: Spark's parser skips the others.
NEEDED = (
    *("event_id", "kind", "recorded_at", "caught_up", "source", "broker", "topology", "queue"),
    *("message_id", "content_id", "requested_delay_ms", "attempt", "replay_id"),
    *("death_reason", "death_queue", "redelivered", "failures"),
    *("destination", "routing_key", "exception_type", "published_by", "publisher_version"),
)
MESSAGE = ("broker", "topology", "key")
# Sources of events in the broker, the best first; Delayboard's own facts are about the same
# messages.
OBSERVED = ("tap", "firehose", "import")
KNOWN_SOURCES = (*OBSERVED, "delayboard", PROBE)
TRIP_COLUMNS = (
    *("broker", "topology", "key", "attempt", "kind", "has_id", "event_id", "source"),
    *("requested_delay_ms", "recorded_us", "caught_up", "destination"),
)
HOUR_US = 3_600_000_000
UUID = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
# Columns that name a failure, beside its topology.
CAUSE = (*("death_queue", "death_reason", "exception_type", "routing_key", "publisher", "version"),)


def line_schema(names: Sequence[str]) -> StructType:
    """One column per named field of MessageEvent, and one for lines that are none."""
    fields = [StructField(name, TYPES[FIELDS[name]]) for name in names]
    return StructType([*fields, StructField(CORRUPT, StringType())])


def read_lines(spark: SparkSession, files: Sequence[Path], names: Sequence[str]) -> DataFrame:
    """The lines of these files of a log with `hour`, `is_malformed`, `is_torn` and CORRUPT, the
    text of a malformed line.

    Only fields that figures need make a line malformed, whatever is read of it.
    """
    # The hour of a file's folder: to take it from each line's path would copy every line again.
    schema = line_schema(names).add("hour", StringType())
    if not files:
        lines = spark.createDataFrame([], schema)
    else:
        lines = spark.read.option("basePath", str(files[0].parents[2])).json(
            [as_it_is(path) for path in files],
            schema=schema,
            mode="PERMISSIVE",
            columnNameOfCorruptRecord=CORRUPT,
        )
    if tuple(names) != NEEDED:
        needed = f.from_json(CORRUPT, line_schema(NEEDED), {"columnNameOfCorruptRecord": CORRUPT})
        still = f.when(f.col(CORRUPT).isNotNull(), needed[CORRUPT])
        lines = lines.withColumn(CORRUPT, still)
    is_torn = f.coalesce(~f.endswith(f.rtrim(CORRUPT), f.lit("}")), f.lit(False))
    return lines.withColumns({"is_malformed": is_malformed(), "is_torn": is_torn})


def read_days(
    spark: SparkSession, given: Sequence[DayInput], names: Sequence[str] = NEEDED
) -> DataFrame:
    """All lines of these days: the named fields, `hour`, `is_malformed` and `is_torn` (the line
    has no end; null in Parquet of earlier releases).
    """
    columns = (*names, "hour", "is_malformed", "is_torn")
    files = [path for one in given for path in one.files]
    frames = []
    if files or not any(one.hours for one in given):
        frames.append(read_lines(spark, files, names).select(*columns))
    fields = [StructField(name, TYPES[FIELDS[name]]) for name in names]
    added = [
        StructField("hour", StringType()),
        StructField("is_malformed", BooleanType()),
        StructField("is_torn", BooleanType()),
    ]
    reader = spark.read.schema(StructType([*fields, *added]))
    if whole := [as_it_is(one.url) for one in given if one.hours and one.is_whole]:
        frames.append(reader.parquet(*whole))
    frames += [
        reader.parquet(as_it_is(one.url)).where(f.col("hour").isin(*one.hours))
        for one in given
        if one.hours and not one.is_whole
    ]
    return reduce(DataFrame.unionByName, frames)


def as_it_is(path: Path | str) -> str:
    """The path for Spark's readers, which take a bracket or a star in it for a pattern."""
    return re.sub(r"([\\\[\]{}*?])", r"\\\1", str(path))


def is_malformed() -> Column:
    """A line that is no JSON, holds a field of a wrong type, or lacks what every event has."""
    missing = f.col("recorded_at").isNull() | f.col("kind").isNull() | f.col("event_id").isNull()
    return f.col(CORRUPT).isNotNull() | missing


def events_of(lines: DataFrame) -> DataFrame:
    """Lines -> narrow rows, also of malformed lines: with `key`, `has_id`, `recorded_us`, and null
    where there are no `failures`.
    """
    has_id = f.coalesce(f.col("message_id") != "", f.lit(False))
    # What was published past every delay carries failures of another round.
    has_failures = (f.col("kind") != "published") & (f.size("failures") > 0)
    return lines.select(
        *("is_malformed", "is_torn", "source", "kind", "event_id", "broker", "topology", "queue"),
        f.when(has_id, f.col("message_id")).otherwise(f.col("content_id")).alias("key"),
        has_id.alias("has_id"),
        *("attempt", "replay_id", "requested_delay_ms", "caught_up", "redelivered"),
        f.unix_micros("recorded_at").alias("recorded_us"),
        *("death_reason", "death_queue", "destination"),
        # Only of failures: two more texts of every copy would be held in memory for nothing.
        f.when(is_failure(), without_numbers("routing_key")).alias("routing_key"),
        f.when(f.col("death_reason") != "", f.col("exception_type")).alias("exception_type"),
        f.nullif("published_by", f.lit("")).alias("publisher"),
        f.nullif("publisher_version", f.lit("")).alias("version"),
        f.when(has_failures, f.col("failures")).alias("failures"),
    )


def without_numbers(name: str) -> Column:
    """A name whose ids and numbers are replaced."""
    return f.regexp_replace(
        f.regexp_replace(f.substring(name, 1, 255), UUID, "{id}"), r"\d+", "{n}"
    )


def is_failure() -> Column:
    return f.col("kind").isin("scheduled", "died") & (f.col("death_reason") != "")


def cause_id() -> Column:
    """A hash of CAUSE: of texts an aggregation would sort."""
    return _hash(CAUSE)


def release_id() -> Column:
    """A hash of publisher and version; null where a message states neither."""
    is_known = f.col("publisher").isNotNull() | f.col("version").isNotNull()
    return f.when(is_known, _hash(("publisher", "version")))


def _hash(names: Sequence[str]) -> Column:
    """A hash of texts. Spark leaves nulls out: a text and a null would be a null and the same
    text.
    """
    return f.xxhash64(*(f.coalesce(f.col(name), f.lit("\0")) for name in names))


def observed(events: DataFrame) -> DataFrame:
    """Events -> events of topologies; events without a topology are omitted."""
    is_observed = f.col("source").isin(*OBSERVED) & (f.col("topology") != "")
    return events.where(~f.col("is_malformed") & is_observed)


def each_once(observed: DataFrame) -> DataFrame:
    """Observed events of messages with an id -> each event with `is_kept`, and the number of its
    lines as `copies`, partitioned by MESSAGE.

    The recorder reads copies again after a crash. A second copy of the same kind, attempt and
    replay that the broker marked as redelivered is such a repeat (4.3 marks a rejected message's
    copy so at its first read too). When two sources, such as a tap and an imported trace, report
    the same event, only the better source counts.
    """
    same = "partition by broker, topology, kind, key, attempt, replay_id"
    number = f"row_number() over ({same} order by rank, redelivered, recorded_us, event_id)"
    return _best(observed, same, f.expr(number) == 1)


def each_once_without_id(observed: DataFrame, sources: int) -> DataFrame:
    """Observed events of messages without an id, by so many sources -> as for each_once.

    When two sources report in the same hour, only the better source counts.
    """
    if sources == 1:
        return _by_event(observed).withColumn("is_kept", f.lit(True))
    hour = f"recorded_us div {HOUR_US}"
    same = f"partition by broker, topology, kind, {hour}, attempt, replay_id"
    return _best(observed, same, f.lit(True)).repartition(*MESSAGE)


def _best(observed: DataFrame, same: str, is_first: Column) -> DataFrame:
    rank = f.array_position(f.array(*map(f.lit, OBSERVED)), f.col("source"))
    best = f"rank = min(rank) over ({same})"
    return (
        _by_event(observed)
        .withColumn("rank", rank)
        .withColumn("is_kept", f.expr(best) & (~f.col("redelivered") | is_first))
        .drop("rank")
    )


def _by_event(observed: DataFrame) -> DataFrame:
    """One row for each event_id, as by dropDuplicates, with the number of lines as `copies`.

    By message, whose events are then counted by it without another exchange, and sorted once.
    """
    event = ("event_id", *MESSAGE)
    others = [f.first(name).alias(name) for name in observed.columns if name not in event]
    by_event = observed.repartition(*MESSAGE).groupBy(*event)
    return by_event.agg(*others, f.count("*").alias("copies"))


def is_traced() -> Column:
    """An event of a trace that belongs to no topology."""
    is_import = (f.col("source") == "import") & (f.col("topology") == "")
    return ~f.col("is_malformed") & is_import & f.col("event_id").startswith(TRACE_ID)


def traced_trips(events: DataFrame) -> DataFrame:
    """Events -> the sides of trips through the queues that are known from a trace alone: a publish
    that reached one queue, and the delivery of what expired in that queue.
    """
    traced = events.where(is_traced()).dropDuplicates(["event_id"])
    exits = traced.where("kind = 'delivered' and death_reason = 'expired' and death_queue != ''")
    exits = exits.withColumn("queue", f.col("death_queue"))
    exits = exits.withColumn("attempt", f.greatest("attempt", f.lit(1)))
    entries = traced.where("kind = 'published' and queue != ''").join(
        exits.select("broker", "queue").distinct(), ["broker", "queue"], "left_semi"
    )
    entries = entries.withColumns({"kind": f.lit("scheduled"), "attempt": f.lit(1)})
    columns = (*TRIP_COLUMNS, "queue")
    return entries.select(*columns).unionAll(exits.select(*columns))


def keep(frame: DataFrame, *, eager: bool = False) -> DataFrame:
    """The frame, computed at its first use, or at once if `eager`.

    A checkpoint and not a cache: it also cuts the plan, and to analyse a plan of everything again
    with each step cost a small day most of its time. On the disk, because rows in the heap
    leave aggregations no room in it, and are copied by each collection of garbage.
    """
    return frame.localCheckpoint(eager=eager, storageLevel=StorageLevel.DISK_ONLY)
