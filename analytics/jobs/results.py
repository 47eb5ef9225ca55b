"""The results of a day as Parquet at a URL, and as lines of JSON for who loads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from functools import reduce
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


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
    columns = {name: frame.columns for name, frame in tables.items()}
    rows = _as_one(tables).localCheckpoint().coalesce(1)
    rows.write.option("compression", "zstd").parquet(folder)
    return Results(folder, rows, columns)


def _as_one(tables: Mapping[str, DataFrame]) -> DataFrame:
    """The rows of all with the name of their `table`; null where a table has not the column."""
    fields = [field for frame in tables.values() for field in frame.schema]
    missing = {field.name: f.lit(None).cast(field.dataType).alias(field.name) for field in fields}
    each = (
        frame.select(
            f.lit(table).alias("table"),
            *(f.col(name) if name in frame.columns else null for name, null in missing.items()),
        )
        for table, frame in tables.items()
    )
    return reduce(DataFrame.union, each)


def hand_over(results: Results, out: Path) -> None:
    """The rows of the results -> lines of JSON in `out`, a file per table.

    Spark writes the moments itself, in UTC and not in local time.
    """
    options = {"ignoreNullFields": "false"}
    as_json = f.coalesce(
        *(
            f.when(f.col("table") == table, f.to_json(f.struct(*columns), options))
            for table, columns in results.columns.items()
        )
    )
    rows = results.rows.select("table", as_json)
    with ExitStack() as stack:
        files = {
            table: stack.enter_context((out / f"{table}.jsonl").open("w"))
            for table in results.columns
        }
        for table, line in rows.toLocalIterator():
            files[table].write(line + "\n")
