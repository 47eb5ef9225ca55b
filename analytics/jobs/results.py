"""The results of a day as Parquet at a URL, and as lines of JSON for who loads them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from datetime import date
from functools import reduce
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from analytics.jobs import session
from analytics.jobs.schema import as_it_is


def write(spark: SparkSession, url: str, day: date, tables: Mapping[str, DataFrame]) -> str:
    """Compute the tables by one query into a new folder of the day; its URL.

    They add up few rows: the session is set up for those, and has to be `tuned` again for others.
    A run writes to a folder of its own, so that nobody reads what two wrote or what one began.
    """
    session.tuned(spark, 0)
    folder = f"{url}/date={day.isoformat()}/run={uuid4().hex[:12]}"
    named = (frame.withColumn("table", f.lit(name)) for name, frame in tables.items())
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), named)
    rows.write.partitionBy("table").option("compression", "zstd").parquet(folder)
    return folder


def hand_over(spark: SparkSession, folder: str, tables: Mapping[str, DataFrame], out: Path) -> None:
    """The rows of a results folder -> lines of JSON in `out`, a file per table.

    Spark writes the moments itself, in UTC and not in local time.
    """
    options = {"ignoreNullFields": "false"}
    as_json = f.coalesce(
        *(
            f.when(f.col("table") == name, f.to_json(f.struct(*frame.columns), options))
            for name, frame in tables.items()
        )
    )
    rows = spark.read.parquet(as_it_is(folder)).select("table", as_json).coalesce(1)
    with ExitStack() as stack:
        files = {name: stack.enter_context((out / f"{name}.jsonl").open("w")) for name in tables}
        for table, line in rows.toLocalIterator():
            files[table].write(line + "\n")
