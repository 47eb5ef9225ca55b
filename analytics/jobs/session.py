"""The Spark session: on this machine, or on the cluster that the environment names."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

# Below this the JVM's start costs more than the work, and its fast compilers never pay.
SMALL_INPUT_BYTES = 256 * 1024 * 1024
HERE = "local[*]"
MISSING = (
    "SPARK_REMOTE needs the packages of Spark Connect, which are missing. Run “pip install "
    "--require-hashes -r requirements-spark-connect.txt”."
)
LOG4J = Path(__file__).with_name("log4j2.properties")


class MissingPackages(Exception):
    """Spark cannot be reached without packages that are not installed; the message names them."""


def start(name: str, *, scratch: Path, input_bytes: int) -> SparkSession:
    """SPARK_REMOTE (Spark Connect), else SPARK_MASTER, else all cores of this machine.

    SPARK_MEMORY sets the driver's heap in local mode, 1g by default. Raises MissingPackages.
    """
    if remote := os.environ.get("SPARK_REMOTE"):
        try:
            return _builder(name).remote(remote).getOrCreate()
        except ImportError as error:
            raise MissingPackages(MISSING) from error
    master = os.environ.get("SPARK_MASTER", HERE)
    return start_at(master, name, scratch=scratch, input_bytes=input_bytes)


def start_at(master: str, name: str, *, scratch: Path, input_bytes: int) -> SparkSession:
    """A session at this master, whatever the environment names."""
    # PySpark takes the variable before the builder's master.
    os.environ.pop("SPARK_REMOTE", None)
    builder = _builder(name)
    builder = builder.master(master).config("spark.ui.enabled", "false")
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        for key, value in _local_settings(scratch, input_bytes).items():
            builder = builder.config(key, value)
    return builder.getOrCreate()


def _builder(name: str) -> SparkSession.Builder:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.appName(name).config("spark.sql.session.timeZone", "UTC")


def _local_settings(scratch: Path, input_bytes: int) -> dict[str, str]:
    java = f'-Dlog4j2.configurationFile={LOG4J.as_uri()} "-Dderby.system.home={scratch}"'
    if input_bytes < SMALL_INPUT_BYTES:
        java += " -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    return {
        "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": os.environ.get("SPARK_MEMORY", "1g"),
        "spark.driver.extraJavaOptions": java,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.ui.showConsoleProgress": "false",
    }
