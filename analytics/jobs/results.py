"""The results of a day as Parquet at a URL, and as lines of JSON for who loads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from analytics.jobs.messages import union
from analytics.jobs.schema import keep


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
    spark.conf.set("spark.sql.shuffle.partitions", "1")
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
