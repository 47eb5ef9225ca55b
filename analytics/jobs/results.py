"""The results of a day as Parquet at a URL, and as lines of JSON for who loads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Results:
    """The rows of all tables in one partition, also in `folder`, and the columns of each table."""

    folder: str
    rows: DataFrame
    columns: Mapping[str, Sequence[str]]


def write(spark: SparkSession, url: str, day: date, tables: Mapping[str, DataFrame]) -> Results:
    """Compute the tables by one query into a new folder of the day.

    They add up few rows: the session is set up for one partition, and has to be `tuned` again for
    others.
    A run writes to a folder of its own, so that nobody reads what two wrote or what one began.
    """
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    folder = f"{url}/date={day.isoformat()}/run={uuid4().hex[:12]}"
    schemas = {name: frame.schema for name, frame in tables.items()}
    rows = spark.sql(_as_one(schemas), args=None, **tables).localCheckpoint().coalesce(1)
    rows.write.option("compression", "zstd").parquet(folder)
    return Results(folder, rows, {name: schema.names for name, schema in schemas.items()})


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


def hand_over(results: Results, out: Path) -> None:
    """The rows of the results -> lines of JSON in `out`, a file per table.

    Spark writes the moments itself, in UTC and not in local time.
    """
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
