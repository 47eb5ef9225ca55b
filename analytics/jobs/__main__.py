"""`python -m analytics.jobs --log FOLDER --day YYYY-MM-DD --results URL --out FOLDER`.

With --compact URL the finished hours become Parquet there. Prints one JSON object per line:
`{"done": 2, "total": 5, "step": "..."}` while it works. Spark writes the results to --results as
Parquet; --out gets `summary.json` and, of each table, its rows as lines of JSON. Exit codes: 0
done, 1 failed (`{"error": "a sentence"}`, which is on stderr too), 2 wrong arguments, 4 no data for
the day (`{"no_data": "a sentence"}`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from time import monotonic
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from analytics import compacted
from analytics.jobs import command, compaction, session, store
from analytics.jobs.day import figures
from analytics.jobs.messages import union
from analytics.jobs.schema import keep

COMPACTING = "Compacting the lines"
STEPS = (
    *("Starting Spark", COMPACTING, "Reading the lines of the day"),
    *("Pairing entries with exits", "Computing the figures", "Writing the results"),
)


def main() -> int:
    parser = command.day_parser("analytics.jobs", __doc__)
    parser.add_argument("--results", required=True, help="the URL that gets Parquet")
    parser.add_argument("--compact", default="", help="the URL that gets the lines as Parquet")
    parser.add_argument("--out", type=Path, required=True, help="an existing folder for results")
    parser.add_argument(
        "--parking", type=json.loads, default={}, help="parking queues by broker, as JSON"
    )
    arguments = parser.parse_args()
    return command.run(lambda: run(arguments))


def run(arguments: argparse.Namespace) -> None:
    log, day, out = arguments.log, arguments.day, arguments.out
    if compacted.input_of(log, day).is_empty:
        raise command.NoData(f"The event log has no data for {day}.")
    size = compacted.day_bytes(log, day)
    # A tiny day is compacted while its figures are computed from its lines. But where an earlier
    # compaction is replaced it comes first, because the Parquet of that one is deleted.
    is_concurrent = session.is_tiny(size) and compacted.read(log, day) is None
    steps: Sequence[str] = STEPS
    if is_concurrent or not arguments.compact:
        steps = [one for one in STEPS if one != COMPACTING]

    def step(number: int) -> None:
        command.print_step(steps, steps.index(STEPS[number]))

    step(0)
    name, archives = f"delayboard {day}", bool(arguments.compact)
    spark = session.start(name, scratch=out, input_bytes=size, archives_classes=archives)
    with session.stopping(spark):
        with ThreadPoolExecutor(max_workers=1) as pool:
            if arguments.compact and not is_concurrent:
                step(1)
            compacting = pool.submit(_compact, spark, arguments, is_concurrent=is_concurrent)
            if not is_concurrent:
                compacting.result()
            try:
                parking, now = arguments.parking, arguments.now
                found = figures(spark, log, day, parking=parking, now=now, step=step)
                step(4)
                computed = compute(spark, found.tables)
            finally:
                # A failure is reported of a day without data too.
                compacting.result()
        step(5)
        folder = write(computed, arguments.results, day, out)
        refuse_unreadable(folder)
        if not session.is_remote():
            store.delete_others(spark, folder)
        (out / "summary.json").write_text(json.dumps(found.summary))


def _compact(spark: SparkSession, arguments: argparse.Namespace, *, is_concurrent: bool) -> None:
    if not arguments.compact:
        return
    began = monotonic()
    log, day, url = arguments.log, arguments.day, arguments.compact
    compaction.compact_day(spark, log, day, url, now=arguments.now)
    if is_concurrent:
        seconds = round(monotonic() - began, 2)
        command.print_progress(concurrent=COMPACTING, seconds=seconds)


@dataclass(frozen=True)
class Results:
    """The rows of all tables in one partition, and the columns of each table."""

    rows: DataFrame
    columns: Mapping[str, Sequence[str]]


def compute(spark: SparkSession, tables: Mapping[str, DataFrame]) -> Results:
    """The rows of the tables, by a query for each half of them: planning one takes one core.

    They add up few rows: the session is set up for one partition, and has to be `tuned` again for
    others.
    """
    for key, value in {**session.INTERPRETED, "spark.sql.shuffle.partitions": "1"}.items():
        spark.conf.set(key, value)
    names = sorted(tables)
    halves = ({name: tables[name] for name in names[first::2]} for first in range(2))
    with ThreadPoolExecutor() as pool:
        one, other = pool.map(partial(_compute, spark), halves)
    return Results(union([one.rows, other.rows]).coalesce(1), {**one.columns, **other.columns})


def _compute(spark: SparkSession, tables: Mapping[str, DataFrame]) -> Results:
    schemas = {name: frame.schema for name, frame in tables.items()}
    rows = keep(spark.sql(_as_one(schemas), args=None, **tables), eager=True)
    return Results(rows, {name: schema.names for name, schema in schemas.items()})


def _as_one(schemas: Mapping[str, StructType]) -> str:
    """A query for the rows of all with the name of their `table`; null where a table has not the
    column. As text: a call of the JVM for each column would take longer than the query.
    """
    types = {field.name: field.dataType.simpleString() for one in schemas.values() for field in one}

    def select(table: str, schema: StructType) -> str:
        known = set(schema.names)
        columns = (
            name if name in known else f"cast(null as {kind}) as {name}"
            for name, kind in types.items()
        )
        return f"select '{table}' as table, {', '.join(columns)} from {{{table}}}"  # noqa: S608

    return " union all ".join(select(*one) for one in schemas.items())


def write(results: Results, url: str, day: date, out: Path) -> str:
    """Write the rows as Parquet into a new folder of the day, and as lines of JSON, a file per
    table, to `out`. Returns the folder: a run has its own, so that nobody reads what two wrote or
    what one began.
    """
    folder = f"{url}/date={day.isoformat()}/run={uuid4().hex[:12]}"
    with ThreadPoolExecutor() as pool:
        writer = results.rows.write.option("compression", "zstd")
        written = pool.submit(writer.parquet, folder)
        _write_lines(results, out)
        written.result()
    return folder


def refuse_unreadable(folder: str) -> None:
    """Raises command.JobError where this machine does not see what was written at file://: each
    machine of a cluster has written to its own disk, and Spark says that all is well.
    """
    path = folder.removeprefix("file://")
    if path != folder and not any(Path(path).glob("part-*")):
        raise command.JobError(
            f"The cluster wrote the results to its own disks, and not to {path} of this machine. "
            "Set RESULTS_URL to a storage that all machines reach."
        )


def _write_lines(results: Results, out: Path) -> None:
    """Spark writes the moments itself, in UTC and not in local time."""
    each = (
        f"when '{table}' then to_json(struct({', '.join(columns)}), "
        "map('ignoreNullFields', 'false'))"
        for table, columns in results.columns.items()
    )
    rows = results.rows.selectExpr("table", f"case table {' '.join(each)} end")
    with ExitStack() as stack:
        files = {
            table: stack.enter_context((out / f"{table}.jsonl").open("w"))
            for table in results.columns
        }
        for table, line in rows.toLocalIterator():
            files[table].write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
