"""Parquet of other tools as lines of JSON: each file by its own schema, time units and zones."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from analytics.events import FIELDS
from analytics.jobs import command
from analytics.jobs.schema import as_it_is

MOMENTS = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    # A time without a zone stays one: the mapping says which is meant.
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def read_tables(spark: SparkSession, place: Path, needed: Collection[str]) -> Iterator[DataFrame]:
    """The rows of a file, or of the folder of a partitioned table, as `file`, `block`, `row` and
    `value`, JSON in bytes: a frame for the files of each schema.

    A null is a field that the line lacks. Spark refuses nanoseconds; they are cut to microseconds.
    Raises NoData for a file without a needed column, and one that is no Parquet.
    """
    by_schema: dict[str, list[Path]] = {}
    for path in sorted(place.rglob("*.parquet")) if place.is_dir() else [place]:
        by_schema.setdefault(_schema_of(spark, path, place), []).append(path)
    for schema, paths in by_schema.items():
        frame = spark.read.parquet(*map(as_it_is, paths))
        folders = paths[0].relative_to(place).parts[:-1] if place.is_dir() else ()
        for name in (folder.partition("=")[0] for folder in folders if "=" in folder):
            frame = frame.withColumn(name, _of_folder(name))
        missing = [name for name in needed if name not in frame.columns]
        if missing:
            raise command.NoData(f"{_name(paths[0], place)} has no column {', '.join(missing)}.")
        is_event_table = bool(needed)
        names = [name for name in frame.columns if name in FIELDS or not is_event_table]
        columns = [_column(frame, name, schema, is_event_table=is_event_table) for name in names]
        yield frame.select(
            f.col("_metadata.file_path").alias("file"),
            f.lit(0).cast("long").alias("block"),
            f.col("_metadata.row_index").alias("row"),
            f.to_json(f.struct(*columns), MOMENTS).cast("binary").alias("value"),
        )


def _of_folder(name: str) -> Column:
    """The value in a folder like `kind=died`, whose name is escaped, and again in the address."""
    value = f.regexp_extract(f.col("_metadata.file_path"), f"/{re.escape(name)}=([^/]*)/", 1)
    for _ in range(2):
        value = f.url_decode(f.replace(value, f.lit("+"), f.lit("%2B")))
    return f.nullif(value, f.lit("__HIVE_DEFAULT_PARTITION__"))


def _name(path: Path, place: Path) -> str:
    return (
        f"parquet/{place.name}"
        if path == place
        else f"parquet/{place.name}/{path.relative_to(place)}"
    )


def _schema_of(spark: SparkSession, path: Path, place: Path) -> str:
    """The schema in the footer of a file, as text."""
    jvm: Any = spark._jvm
    hadoop = jvm.org.apache.hadoop
    parquet = jvm.org.apache.parquet.hadoop
    file = hadoop.fs.Path(jvm.java.io.File(str(path.resolve())).toURI())
    try:
        source = parquet.util.HadoopInputFile.fromPath(file, hadoop.conf.Configuration())
        reader = parquet.ParquetFileReader.open(source)
    except Exception as error:
        raise command.NoData(f"{_name(path, place)} is no readable Parquet file.") from error
    try:
        return str(reader.getFooter().getFileMetaData().getSchema().toString())
    finally:
        reader.close()


def _column(frame: DataFrame, name: str, schema: str, *, is_event_table: bool) -> Column:
    """A column with its moments as moments. Events are in UTC, where their table names no zone."""
    quoted = f"`{name.replace('`', '``')}`"
    column = f.col(quoted)
    is_utc = f"int64 {name} (TIMESTAMP(NANOS,true))" in schema
    if is_utc or f"int64 {name} (TIMESTAMP(NANOS,false))" in schema:
        # Floored, so that times before 1970 are cut like all others.
        moment = f.timestamp_micros(f.expr(f"({quoted} - pmod({quoted}, 1000)) div 1000"))
        column = moment if is_utc or is_event_table else moment.cast("timestamp_ntz")
    elif is_event_table and frame.schema[name].dataType.typeName() == "timestamp_ntz":
        column = column.cast("timestamp")
    return column.alias(name)
