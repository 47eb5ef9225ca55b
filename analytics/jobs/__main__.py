"""`python -m analytics.jobs --log FOLDER --day YYYY-MM-DD --results URL --out FOLDER`.

With --compact URL the finished hours become Parquet there first. Prints one JSON object per line:
`{"done": 2, "total": 5, "step": "..."}` while it works. Spark writes the results to --results as
Parquet; --out gets `summary.json` and, of each table, its rows as lines of JSON. Exit codes: 0
done, 1 failed (the reason on stderr), 2 wrong arguments, 4 no data for the day (`{"no_data": "a
sentence"}` on stdout).
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

from pyspark.errors import PySparkException

from analytics import compacted
from analytics.jobs import command, compaction, results, session, store
from analytics.jobs.day import NoData, figures

DONE, FAILED, NO_DATA = 0, 1, 4
STEPS = (
    "Starting Spark",
    "Compacting the lines",
    "Reading the lines of the day",
    "Pairing entries with exits",
    "Computing the figures",
    "Handing over the results",
)


def main() -> int:
    arguments = _arguments()
    try:
        run(arguments)
    except NoData as nothing:
        command.print_progress(no_data=str(nothing))
        return NO_DATA
    except session.MissingPackages as missing:
        sys.stderr.write(f"{missing}\n")
        return FAILED
    except (PySparkException, OSError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}".split("\n\n")[0] + "\n")
        return FAILED
    return DONE


def run(arguments: argparse.Namespace) -> None:
    log, day, out = arguments.log, arguments.day, arguments.out
    if compacted.input_of(log, day).is_empty:
        raise NoData(f"The event log has no data for {day}.")
    step = partial(command.print_step, STEPS)
    step(0)
    spark = session.start(
        f"delayboard {day}",
        scratch=out,
        input_bytes=compacted.day_bytes(log, day),
        archives_classes=bool(arguments.compact),
    )
    try:
        if arguments.compact:
            step(1)
            compaction.compact_day(spark, log, day, arguments.compact, now=arguments.now)
        found = figures(spark, log, day, now=arguments.now, step=step)
        step(4)
        computed = results.compute(spark, found.tables)
        step(5)
        folder = results.hand_over(computed, arguments.results, day, out)
        if not session.is_remote():
            store.delete_others(spark, folder)
        (out / "summary.json").write_text(json.dumps(found.summary))
    finally:
        session.stop(spark)


def _arguments() -> argparse.Namespace:
    parser = command.day_parser("analytics.jobs", __doc__)
    parser.add_argument("--results", required=True, help="the URL that gets Parquet")
    parser.add_argument("--compact", default="", help="the URL that gets the lines as Parquet")
    parser.add_argument("--out", type=Path, required=True, help="an existing folder for results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
