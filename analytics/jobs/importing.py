"""`python -m analytics.jobs.importing --log FOLDER --work FOLDER`.

Turns what analytics.importing laid into --work into lines that the log does not have yet. In
--work it finds `raw/`, `staged/` and `traces/` with events (see `of_staged`), `mapped/` and
`records/` with records of `mapping.json`, and `parquet/` with either. It leaves
`out/date=…/hour=…/*.txt` and `summary.json`. Output and exit codes are those of `python -m
analytics.jobs`; 4 says that a file has not the columns of an event.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, timedelta
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession, Window
from pyspark.sql import functions as f

from analytics.events import MessageEvent, clean, decode, encode, read_object
from analytics.jobs import command, session
from analytics.jobs.parquet_tables import read_tables
from analytics.jobs.schema import KNOWN_SOURCES, as_it_is, keep
from analytics.mappings.mapping import parse_once

STEPS = ("Starting Spark", "Reading the lines", "Comparing with the log", "Writing the new ones")
SHOWN = 20
LINES_A_FILE = 100_000
NEEDED = ("event_id", "kind", "recorded_at")
MAPPING_FILE = "mapping.json"
# Begin of every line that encode writes. Ids of traces and mapped logs are hashes of what several
# lines may have, unless the log names its events itself.
LINE_BEGINS = '{"v":1,"event_id":"'
HASHED = "^(trace|log):[0-9a-f]{32}(:[a-z]+)?$"
# Most names that the report of an import lists.
MOST_NAMES = 100
PLACE = ("file", "block", "row")
PROBLEM_MARK = b"!"
LONGEST_PROBLEM = 300
SCHEMA = (
    "array<struct<problem: string, event_id: string, date: string, hour: string, entered: string,"
    " recorded_us: bigint, topology: string, has_id: boolean, line: string>>"
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m analytics.jobs.importing", description=__doc__)
    parser.add_argument("--log", type=Path, required=True, help="the folder of the event log")
    parser.add_argument("--work", type=Path, required=True, help="the folder to work in")
    arguments = parser.parse_args()
    return command.run(lambda: run(arguments.log, arguments.work))


def run(log: Path, work: Path) -> None:
    command.print_step(STEPS, 0)
    # Python's workers are children of the JVM: the environment contains the path of our code.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    (work / "log").symlink_to(log)
    size = sum(path.stat().st_size for path in work.rglob("*") if path.is_file())
    spark = session.start_at(session.LOCAL, "delayboard import", scratch=work, input_bytes=size)
    with session.stopping(spark):
        spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
        spark.conf.set("spark.sql.parquet.binaryAsString", "true")
        spark.conf.set("spark.sql.legacy.parquet.nanosAsLong", "true")
        try:
            summary = _import(spark, work)
        except PySparkException as error:
            # A worker of Spark says it in the middle of a traceback.
            if slow := re.search(r"SlowPattern: (.+)", str(error)):
                raise command.JobError(slow[1]) from error
            raise
    (work / "summary.json").write_text(json.dumps(summary))


def _import(spark: SparkSession, work: Path) -> dict[str, Any]:
    command.print_step(STEPS, 1)
    mapping = _read_mapping(work)
    all_rows = rows = keep(_rows(spark, work, mapping))
    found = rows.select("found", f.size("found").alias("size"))
    is_wrong = f.exists("found", lambda one: one["problem"].isNotNull())
    counts = found.agg(
        f.count("found").alias("read"),
        f.count_if(is_wrong).alias("malformed"),
        f.count_if(f.col("size") == 0).alias("ignored"),
        f.coalesce(f.sum(f.when(~is_wrong, f.col("size"))), f.lit(0)).alias("events"),
    ).collect()[0]
    summary: dict[str, Any] = {**counts.asDict(), "entered": []}
    events = rows.select(*PLACE, f.explode("found").alias("found"))
    events = events.where("found.line is not null").select(*PLACE, "found.*")
    summary["problems"] = _problems(all_rows, work) if counts["malformed"] else []
    summary |= _describe(events, mapping)
    command.print_step(STEPS, 2)
    fresh = _fresh(spark, work, events)
    command.print_step(STEPS, 3)
    summary["entered"] = _write(fresh, work / "out")
    return summary


def _read_mapping(work: Path) -> dict[str, Any] | None:
    file = work / MAPPING_FILE
    return json.loads(file.read_text()) if file.exists() else None


def _describe(events: DataFrame, mapping: dict[str, Any] | None) -> dict[str, Any]:
    """The topologies of the events, and what none of them has."""
    if mapping is None:
        return {"topologies": [], "quality": []}
    names = events.select("topology").distinct().limit(MOST_NAMES).collect()
    counts = events.agg(
        f.count("*").alias("events"),
        f.count_if(f.col("recorded_us") % 1_000_000 == 0).alias("whole"),
        f.count_if("has_id").alias("named"),
    ).collect()[0]
    found = {
        "no ids": counts["named"] == 0 < counts["events"],
        "whole seconds": 0 < counts["events"] == counts["whole"],
    }
    quality = [name for name, is_found in found.items() if is_found]
    return {"topologies": sorted(row["topology"] for row in names), "quality": quality}


def _rows(spark: SparkSession, work: Path, mapping: dict[str, Any] | None) -> DataFrame:
    """Every line with its place and, as `found`, the events of SCHEMA."""
    readings = {
        "raw": of_raw,
        "staged": of_staged,
        "traces": of_staged,
        "mapped": of_raw if mapping is None else partial(of_record, mapping, False),
        "records": of_raw if mapping is None else partial(of_record, mapping, True),
    }
    frames = [
        _lines(spark, files).select(*PLACE, read(f.col("value")).alias("found"))
        for name, read in readings.items()
        if (files := sorted((work / name).iterdir()))
    ]
    frames += [
        frame.select(*PLACE, readings["mapped"](f.col("value")).alias("found"))
        for place in sorted((work / "parquet").iterdir())
        for frame in read_tables(spark, place, NEEDED if mapping is None else ())
    ]
    return reduce(DataFrame.union, frames)


def _lines(spark: SparkSession, files: Sequence[Path]) -> DataFrame:
    """Lines as bytes. Within a block of a file `row` counts up by one, from anywhere."""
    return spark.read.text([as_it_is(path) for path in files], lineSep="\n").select(
        f.col("_metadata.file_path").alias("file"),
        f.col("_metadata.file_block_start").alias("block"),
        f.monotonically_increasing_id().alias("row"),
        f.col("value").cast("binary"),
    )


def _problems(rows: DataFrame, work: Path) -> list[dict[str, Any]]:
    """The first malformed lines: file below --work, number from 1, why."""
    problem = f.col("found")[0]["problem"].alias("problem")
    is_wrong = f.col("problem").isNotNull()
    wrong = rows.select(*PLACE, problem).where(is_wrong).orderBy(*PLACE).limit(SHOWN).collect()
    files = list({row["file"] for row in wrong})
    blocks = (
        rows.where(f.col("file").isin(files))
        .groupBy("file", "block")
        .agg(f.min("row").alias("first"), f.max("row").alias("last"))
        .orderBy("file", "block")
        .collect()
    )
    return [
        {
            "file": unquote(row["file"]).partition(f"{work}/")[2],
            "number": _count_lines(row, blocks),
            "why": row["problem"],
        }
        for row in wrong
    ]


def _count_lines(row: Row, blocks: Iterable[Row]) -> int:
    of_file = [block for block in blocks if block["file"] == row["file"]]
    before = sum(b["last"] - b["first"] + 1 for b in of_file if b["block"] < row["block"])
    own = next(block for block in of_file if block["block"] == row["block"])
    return int(before + row["row"] - own["first"] + 1)


def _fresh(spark: SparkSession, work: Path, events: DataFrame) -> DataFrame:
    """The events that the log does not have, each once: of several lines the first."""
    hours = events.select("date", "hour").distinct().collect()
    valid = _with_ordinals(events)
    same = Window.partitionBy("event_id").orderBy(*PLACE)
    firsts = valid.withColumn("sighting", f.row_number().over(same)).where("sighting = 1")
    folders = (work / "log" / f"date={row['date']}/hour={row['hour']}" for row in hours)
    paths = [as_it_is(path) for folder in folders for path in folder.glob("*.jsonl")]
    if not paths:
        return firsts
    known = spark.read.text(paths, lineSep="\n").select(
        f.get_json_object("value", "$.event_id").alias("event_id")
    )
    return firsts.join(known, "event_id", "left_anti")


def _with_ordinals(events: DataFrame) -> DataFrame:
    """Equal lines of a file of a foreign log are separate events: the id has the number of the line
    among its equals in the file. Those of a copied file are the same events, whenever it is read.
    """
    is_hashed = f.col("event_id").rlike(HASHED) & ~f.col("file").rlike("/(raw|staged)/[0-9]+$")
    equal = Window.partitionBy("file", "event_id").orderBy("block", "row", "recorded_us", "line")
    number = f.concat(f.lit(":"), f.row_number().over(equal))
    numbered = events.withColumn("number", f.when(is_hashed, number).otherwise(f.lit("")))
    begins = f.concat(f.lit(LINE_BEGINS), "event_id")
    rest = f.expr(f"substring(line, {len(LINE_BEGINS) + 1} + length(event_id))")
    line = f.when(is_hashed, f.concat(begins, "number", rest)).otherwise(f.col("line"))
    return (
        numbered.withColumn("line", line)
        .withColumn("event_id", f.concat("event_id", "number"))
        .drop("number")
    )


def _write(fresh: DataFrame, out: Path) -> list[str]:
    """Write the lines by hour, in the order of time; the days on which they began to wait."""
    observation = Observation("import")
    (
        fresh.observe(observation, f.collect_set("entered").alias("entered"))
        .repartition("date", "hour")
        .sortWithinPartitions("date", "hour", "recorded_us", "event_id")
        .select("line", "date", "hour")
        .write.partitionBy("date", "hour")
        .option("maxRecordsPerFile", LINES_A_FILE)
        .text(str(out))
    )
    # Of no lines at all Spark makes no plan that could be observed.
    return sorted(observation.get["entered"]) if any(out.glob("date=*")) else []


class Read(NamedTuple):
    """An item of SCHEMA: `problem`, or the rest. `entered` is the day it began to wait.

    By Python and not by Spark's functions: what an event is, analytics.events and
    analytics.mappings alone decide.
    """

    problem: str | None
    event_id: str | None = None
    date: str | None = None
    hour: str | None = None
    entered: str | None = None
    recorded_us: int | None = None
    topology: str | None = None
    has_id: bool | None = None
    line: str | None = None


def of_raw(value: Column) -> Column:
    """A line as it lies in a file, in bytes; null for a blank one."""
    return f.udf(read, SCHEMA, useArrow=False)(value)


def of_staged(value: Column) -> Column:
    """A line as analytics.importing wrote it: an event, or the mark and what is wrong."""
    return f.udf(read_staged, SCHEMA, useArrow=False)(value)


def of_record(mapping: dict[str, Any], is_staged: bool, value: Column) -> Column:
    """A line that is a record of this mapping; of a file that analytics.importing wrote, or the
    mark and what is wrong.
    """
    return f.udf(partial(read_record, mapping, is_staged), SCHEMA, useArrow=False)(value)


def read_staged(line: bytearray) -> list[Read] | None:
    return _read_problem(line) or read(line)


def _read_problem(line: bytearray) -> list[Read]:
    if not line.startswith(PROBLEM_MARK):
        return []
    return [Read(_bounded(line[1:].decode("utf-8", "backslashreplace")))]


def read(line: bytearray) -> list[Read] | None:
    text = bytes(line).strip()
    if not text:
        return None
    try:
        return [_of_event(decode(text))]
    except (ValueError, OverflowError) as error:
        return [Read(_bounded(str(error)))]


def read_record(mapping: dict[str, Any], is_staged: bool, line: bytearray) -> list[Read] | None:
    """The events of a record; an empty list where no rule of the mapping wants it."""
    if is_staged and (problem := _read_problem(line)):
        return problem
    text = bytes(line).strip()
    if not text:
        return None
    try:
        reader = parse_once(mapping["text"], mapping["name"])
        return [_of_event(event) for event in reader.read(read_object(text), mapping["defaults"])]
    except (ValueError, OverflowError) as error:
        return [Read(_bounded(str(error)))]


def _of_event(event: MessageEvent) -> Read:
    if event.source not in KNOWN_SOURCES:
        event = replace(event, source="import")
    at = event.recorded_at.astimezone(UTC)
    entered = at
    if event.kind == "delivered":
        entered -= timedelta(milliseconds=event.requested_delay_ms)
    return Read(
        problem=None,
        event_id=clean(event.event_id),
        date=at.date().isoformat(),
        hour=f"{at.hour:02}",
        entered=entered.date().isoformat(),
        recorded_us=int(at.timestamp()) * 1_000_000 + at.microsecond,
        topology=clean(event.topology),
        has_id=event.message_id != "",
        line=encode(event).decode(),
    )


def _bounded(problem: str) -> str:
    return clean(problem)[:LONGEST_PROBLEM]


if __name__ == "__main__":
    sys.exit(main())
