"""Folders at a URL (a path, s3a://, hdfs://), by the file systems that Spark itself writes to."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession


def delete(spark: SparkSession, url: str) -> None:
    """Delete a folder with all in it; nothing if there is none."""
    path, files = _open(spark, url)
    files.delete(path, True)


def size(spark: SparkSession, url: str) -> int:
    """The bytes of all files in a folder."""
    path, files = _open(spark, url)
    found: int = files.getContentSummary(path).getLength()
    return found


def delete_others(spark: SparkSession, url: str) -> None:
    """Delete the other folders beside this one, which it replaces."""
    parent, _, own = url.rpartition("/")
    path, files = _open(spark, parent)
    for status in files.listStatus(path) if files.exists(path) else ():
        if status.getPath().getName() != own:
            delete(spark, f"{parent}/{status.getPath().getName()}")


def _open(spark: SparkSession, url: str) -> tuple[Any, Any]:
    context = spark.sparkContext
    jvm: Any = context._jvm
    path = jvm.org.apache.hadoop.fs.Path(url)
    return path, path.getFileSystem(context._jsc.hadoopConfiguration())
