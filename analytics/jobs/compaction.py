"""`python -m analytics.jobs.compaction --log FOLDER --day YYYY-MM-DD --url URL --work FOLDER`.

Writes the finished hours of a UTC day as Parquet below --url: sorted by topology and message,
zstd, in `v1/date=…/run=…`. What it wrote before is kept until the new folder is whole. Also
deletes the Parquet of days that have expired. Output as of `python -m analytics.jobs`.
"""

from __future__ import annotations

import math
import os
import sys
from datetime import date, datetime
from pathlib import Path
from uuid import uuid4

from pyspark.sql import SparkSession

from analytics import compacted
from analytics.compacted import Compacted, Sizes
from analytics.events import FIELDS
from analytics.jobs import command, schema, session, store

STEPS = ("Starting Spark for the compaction", "Compacting the lines")
LAYOUT = "v1"
ORDER = ("broker", "topology", "message_id", "content_id", "recorded_at")
# Nearly every row has another value: Parquet would build a dictionary of them in vain.
UNIQUE = (
    *("event_id", "message_id", "correlation_id", "content_id"),
    *("recorded_at", "published_at", "due_at"),
)
# Bytes of a file of a large day; the wanted size leaves room for uneven files.
LEAST_FILE, WANTED_FILE, LARGEST_FILE = 128 * 10**6, 224 * 10**6, 256 * 10**6
# Bytes of lines from which on a task of its own is worth it.
LINE_BYTES_A_TASK = 64 * 10**6


def main() -> int:
    parser = command.day_parser("analytics.jobs.compaction", __doc__)
    parser.add_argument("--url", required=True, help="the URL that gets Parquet")
    parser.add_argument("--work", type=Path, required=True, help="the folder to work in")
    given = parser.parse_args()
    return command.run(lambda: run(given.log, given.day, given.url, given.work, now=given.now))


def run(log: Path, day: date, url: str, work: Path, *, now: datetime) -> None:
    """The lines lie on this machine, so that it is this machine that reads them."""
    command.print_step(STEPS, 0)
    size = compacted.line_bytes(compacted.finished(log, day, now))
    spark = session.start_at(session.LOCAL, f"compact {day}", scratch=work, input_bytes=size)
    with session.stopping(spark):
        command.print_step(STEPS, 1)
        compact_day(spark, log, day, url, now=now)


def compact_day(spark: SparkSession, log: Path, day: date, url: str, *, now: datetime) -> None:
    """Compact the hours of the day that are finished by `now`; delete what has expired."""
    # First what has expired: lines of such a day may have been imported since, into its folder.
    for manifest, folder in compacted.expired(log).items():
        store.delete(spark, folder.rpartition("/")[0])
        manifest.unlink()
    hours = compacted.finished(log, day, now)
    if compacted.is_late(log, day, hours):
        compact(spark, log, day, url, hours)


def compact(spark: SparkSession, log: Path, day: date, url: str, hours: Sizes) -> None:
    """Write these hours of the day, and those that are Parquet already, to a new folder."""
    given = compacted.input_of(log, day, hours)
    before = compacted.read(log, day)
    folder = f"{url}/{LAYOUT}/date={day.isoformat()}/run={uuid4().hex[:12]}"
    cores = os.cpu_count() or 1
    files = file_count(compacted.line_bytes(hours), compacted.shrinkage(log), cores)
    lines = schema.read_days(spark, [given], tuple(FIELDS))
    # Each task sorts what it reads: an exchange would write the day to the disk once more. But with
    # fewer files than cores few tasks would read a large day.
    by = ("broker", "topology", "message_id", "content_id")
    placed = lines.repartition(files, *by) if 1 < files < cores else lines.coalesce(files)
    options = {f"parquet.enable.dictionary#{name}": "false" for name in UNIQUE}
    placed.sortWithinPartitions(*ORDER).write.options(compression="zstd", **options).parquet(folder)
    kept = before.hours if before else {}
    parquet_bytes = store.size(spark, folder)
    compacted.write(log, day, Compacted(folder, {**kept, **hours}, parquet_bytes))
    store.delete_others(spark, folder)
    if before and before.url.rpartition("/")[0] != folder.rpartition("/")[0]:
        store.delete(spark, before.url)


def file_count(line_bytes: int, shrinkage: float, cores: int) -> int:
    """How many files so many bytes of lines become, if Parquet is smaller by `shrinkage`.

    A day that is too small for two files of LEAST_FILE gets a file for each core. Otherwise, where
    the sizes allow it, each core writes as many as the others: with three files one of two cores
    would be idle for a quarter of the time.
    """
    parquet_bytes = line_bytes / shrinkage
    if parquet_bytes < 2 * LEAST_FILE:
        return max(min(cores, line_bytes // LINE_BYTES_A_TASK), 1)
    wanted = math.ceil(parquet_bytes / WANTED_FILE)
    most = int(parquet_bytes // LEAST_FILE)
    files = min(max(cores, wanted), most)
    rounds = math.ceil(files / cores)
    if rounds * cores <= most:
        return rounds * cores
    fewer = (rounds - 1) * cores
    return fewer if fewer and parquet_bytes / fewer <= LARGEST_FILE else files


if __name__ == "__main__":
    sys.exit(main())
