"""`python -m analytics.jobs.importing --log FOLDER --work FOLDER`.

Turns what analytics.importing laid into --work into lines that the log does not have yet. In
--work it finds `raw/`, `staged/` and `traces/` with lines of text (see `of_staged`) and
`parquet/`; it leaves `out/date=…/hour=…/*.txt` and `summary.json`. Output and exit codes are
those of `python -m analytics.jobs`; 4 says that a file has not the columns of an event.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession, Window
from pyspark.sql import functions as f

from analytics.events import FIELDS, MessageEvent, clean, decode, encode
from analytics.jobs import command, session
from analytics.jobs.schema import KNOWN_SOURCES, as_it_is, keep

STEPS = ("Starting Spark", "Reading the lines", "Comparing with the log", "Writing the new ones")
SHOWN = 20
LINES_A_FILE = 100_000
NEEDED = ("event_id", "kind", "recorded_at")
# What every line of a trace file begins with, as encode writes it, up to the hash's end.
TRACE_ID_ENDS = len('{"v":1,"event_id":"trace:') + 32
PLACE = ("file", "block", "row")
PROBLEM_MARK = b"!"
LONGEST_PROBLEM = 300
SCHEMA = (
    "problem string, event_id string, date string, hour string, entered string,"
    " recorded_us bigint, line string"
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
        summary = _import(spark, work)
    (work / "summary.json").write_text(json.dumps(summary))


def _import(spark: SparkSession, work: Path) -> dict[str, Any]:
    command.print_step(STEPS, 1)
    rows = keep(_rows(spark, work))
    counts = rows.agg(
        f.count("found").alias("read"), f.count("found.problem").alias("malformed")
    ).collect()[0]
    summary = {"read": counts["read"], "malformed": counts["malformed"], "entered": []}
    summary["problems"] = _problems(rows, work) if counts["malformed"] else []
    command.print_step(STEPS, 2)
    fresh = _fresh(spark, work, rows)
    command.print_step(STEPS, 3)
    summary["entered"] = _write(fresh, work / "out")
    return summary


def _rows(spark: SparkSession, work: Path) -> DataFrame:
    """Every line with its place and, as `found`, the columns of SCHEMA."""
    readings = {
        "raw": of_raw,
        "staged": of_staged,
        "traces": of_staged,
    }
    frames = [
        _lines(spark, files).select(*PLACE, read(f.col("value")).alias("found"))
        for name, read in readings.items()
        if (files := sorted((work / name).iterdir()))
    ]
    frames += [
        _parquet(spark, paths).select(*PLACE, of_raw(f.col("value")).alias("found"))
        for paths in _tables(work / "parquet")
    ]
    rows = frames[0]
    for frame in frames[1:]:
        rows = rows.union(frame)
    return rows


def _lines(spark: SparkSession, files: Sequence[Path]) -> DataFrame:
    """Lines as bytes. Within a block of a file `row` counts up by one, from anywhere."""
    return spark.read.text([as_it_is(path) for path in files], lineSep="\n").select(
        f.col("_metadata.file_path").alias("file"),
        f.col("_metadata.file_block_start").alias("block"),
        f.monotonically_increasing_id().alias("row"),
        f.col("value").cast("binary"),
    )


def _tables(folder: Path) -> list[list[Path]]:
    """What is read as one: all single files together, and each folder."""
    paths = sorted(folder.iterdir())
    files = [path for path in paths if path.is_file()]
    return [*([files] if files else []), *([path] for path in paths if path.is_dir())]


def _parquet(spark: SparkSession, paths: Sequence[Path]) -> DataFrame:
    """Rows as lines of JSON; a null is a field that the line lacks."""
    options = {"pathGlobFilter": "*.parquet"} if paths[0].is_dir() else {}
    reader = spark.read.options(mergeSchema="true", **options)
    frame = reader.parquet(*map(as_it_is, paths))
    missing = [name for name in NEEDED if name not in frame.columns]
    if missing:
        raise command.NoData(f"parquet/{paths[0].name} has no column {', '.join(missing)}.")
    fields = f.struct(*(name for name in FIELDS if name in frame.columns))
    moments = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
    return frame.select(
        f.col("_metadata.file_path").alias("file"),
        f.lit(0).cast("long").alias("block"),
        f.col("_metadata.row_index").alias("row"),
        f.to_json(fields, moments).cast("binary").alias("value"),
    )


def _problems(rows: DataFrame, work: Path) -> list[dict[str, Any]]:
    """The first malformed lines: file below --work, number from 1, why."""
    wrong = rows.where("found.problem is not null").orderBy(*PLACE).limit(SHOWN).collect()
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
            "why": row["found"]["problem"],
        }
        for row in wrong
    ]


def _count_lines(row: Row, blocks: Iterable[Row]) -> int:
    of_file = [block for block in blocks if block["file"] == row["file"]]
    before = sum(b["last"] - b["first"] + 1 for b in of_file if b["block"] < row["block"])
    own = next(block for block in of_file if block["block"] == row["block"])
    return int(before + row["row"] - own["first"] + 1)


def _fresh(spark: SparkSession, work: Path, rows: DataFrame) -> DataFrame:
    """The events that the log does not have, each once: of several lines the first."""
    valid = rows.where("found.line is not null").select(*PLACE, "found.*")
    hours = valid.select("date", "hour").distinct().collect()
    if any((work / "traces").iterdir()):
        valid = _with_ordinals(valid)
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


def _with_ordinals(valid: DataFrame) -> DataFrame:
    """Equal lines of a trace file are separate events: the id contains the number of the line."""
    is_trace = f.col("file").rlike("/traces/[0-9]+$")
    equal = Window.partitionBy("file", "event_id").orderBy("block", "row")
    ordinal = f.concat(f.lit(":"), f.row_number().over(equal))
    begins, ends = f.substring("line", 1, TRACE_ID_ENDS), f"substring(line, {TRACE_ID_ENDS + 1})"
    numbered = (
        valid.where(is_trace)
        .withColumn("ordinal", ordinal)
        .withColumn("event_id", f.concat("event_id", "ordinal"))
        .withColumn("line", f.concat(begins, "ordinal", f.expr(ends)))
    )
    return valid.where(~is_trace).union(numbered.drop("ordinal"))


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
    """The columns of SCHEMA: `problem`, or the rest. `entered` is the day it began to wait.

    By Python and not by Spark's functions: what an event is, analytics.events alone decides.
    """

    problem: str | None
    event_id: str | None = None
    date: str | None = None
    hour: str | None = None
    entered: str | None = None
    recorded_us: int | None = None
    line: str | None = None


def of_raw(value: Column) -> Column:
    """A line as it lies in a file, in bytes; null for a blank one."""
    return f.udf(read, SCHEMA, useArrow=False)(value)


def of_staged(value: Column) -> Column:
    """A line as analytics.importing wrote it: an event, or the mark and what is wrong."""
    return f.udf(read_staged, SCHEMA, useArrow=False)(value)


def read_staged(line: bytearray) -> Read | None:
    if line.startswith(PROBLEM_MARK):
        return Read(_bounded(line[1:].decode("utf-8", "backslashreplace")))
    return read(line)


def read(line: bytearray) -> Read | None:
    text = bytes(line).strip()
    if not text:
        return None
    try:
        return _of_event(decode(text))
    except (ValueError, OverflowError) as error:
        return Read(_bounded(str(error)))


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
        line=encode(event).decode(),
    )


def _bounded(problem: str) -> str:
    return clean(problem)[:LONGEST_PROBLEM]


if __name__ == "__main__":
    sys.exit(main())
