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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

from pyspark.sql import SparkSession

from analytics import compacted
from analytics.jobs import command, compaction, results, session, store
from analytics.jobs.day import figures

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
                found = figures(spark, log, day, now=arguments.now, step=step)
                step(4)
                computed = results.compute(spark, found.tables)
            finally:
                # A failure is reported of a day without data too.
                compacting.result()
        step(5)
        folder = results.write(computed, arguments.results, day, out)
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


if __name__ == "__main__":
    sys.exit(main())
