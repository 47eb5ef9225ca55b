"""`python -m analytics.jobs --log FOLDER --day YYYY-MM-DD --out FOLDER`.

Prints one JSON object per line: `{"done": 2, "total": 7, "step": "..."}` while it works. Leaves
`summary.json` and one JSON list per table in --out. Exit codes: 0 done, 1 failed (the reason
on stderr), 2 wrong arguments, 4 no data for the day (`{"no_data": "a sentence"}` on stdout).
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from analytics.jobs import accuracy, retries, schema, session
from analytics.log import day_files

DONE, FAILED, NO_DATA = 0, 1, 4
STEPS = (
    "Starting Spark",
    "Reading the day's lines",
    "Pairing entries with exits",
    "Delay accuracy",
    "Histograms of lateness",
    "Retry rates",
    "Writing the results",
)
ONE_DAY = timedelta(days=1)


class NoData(Exception):
    """The log holds nothing for the day; the message says so."""


def main() -> int:
    arguments = _arguments()
    try:
        run(arguments.log, arguments.day, arguments.out, now=arguments.now)
    except NoData as nothing:
        _say(no_data=str(nothing))
        return NO_DATA
    except session.MissingPackages as missing:
        sys.stderr.write(f"{missing}\n")
        return FAILED
    except (PySparkException, OSError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}".split("\n\n")[0] + "\n")
        return FAILED
    return DONE


def run(log: Path, day: date, out: Path, *, now: datetime) -> None:
    files = day_files(log, day)
    if not files:
        raise NoData(f"The event log has no data for {day}.")
    _step(0)
    input_bytes = sum(path.stat().st_size for path in files)
    spark = session.start(f"delayboard {day}", scratch=out, input_bytes=input_bytes)
    try:
        _compute(spark, log, day, out, now=now)
    finally:
        spark.stop()


def _compute(spark: SparkSession, log: Path, day: date, out: Path, *, now: datetime) -> None:
    _step(1)
    lines = schema.read_lines(spark, log, [day]).persist()
    summary = _summary(lines)
    if not summary["observed"]:
        raise NoData(
            f"The event log of {day} has {summary['lines']} lines, but no readable line of a "
            f"tap ({summary['malformed']} are malformed)."
        )
    _step(2)
    until = day + timedelta(milliseconds=summary["longest_delay_ms"]) + 2 * ONE_DAY
    later = _days(day + ONE_DAY, min(until, now.date() + ONE_DAY))
    following = schema.read_lines(spark, log, later).where(accuracy.TELLS_OF_THE_DAY_BEFORE)
    everything = lines.union(following)
    events = schema.observed(everything).persist()
    begin, end = (datetime.combine(one, time(), UTC) for one in (day, day + ONE_DAY))
    began_at = f.col("began_at")
    trips = accuracy.pair(schema.trips(events, everything))
    pairs = trips.where((began_at >= f.lit(begin)) & (began_at < f.lit(end))).persist()
    counted = retries.of_day(events, begin, end).persist()
    data_end = min(now, datetime.combine(until, time(), UTC))
    _step(3)
    _write(out / "accuracy.json", accuracy.accuracy(pairs, data_end))
    _write(out / "uncounted.json", accuracy.uncounted(pairs))
    _step(4)
    _write(out / "histogram.json", accuracy.histogram(pairs))
    _step(5)
    _write(out / "retries.json", retries.retries(counted))
    _write(out / "attempts.json", retries.attempts(counted))
    _write(out / "deaths.json", retries.deaths(counted, begin))
    _step(6)
    (out / "summary.json").write_text(json.dumps(summary))


def _summary(lines: DataFrame) -> dict[str, int]:
    is_malformed = schema.is_malformed()
    waited = f.when(f.col("kind").isin("scheduled", "delivered"), f.col("requested_delay_ms"))
    row = lines.agg(
        f.count("*").alias("lines"),
        f.count_if(is_malformed).alias("malformed"),
        f.count_if(~is_malformed & f.col("source").isin(*schema.OBSERVED)).alias("observed"),
        f.coalesce(f.max(waited), f.lit(0)).alias("longest_delay_ms"),
    ).collect()[0]
    summary: dict[str, int] = row.asDict()
    return summary


def _days(first: date, before: date) -> list[date]:
    return [first + n * ONE_DAY for n in range((before - first).days)]


def _write(path: Path, rows: DataFrame) -> None:
    """A list of objects; Spark writes the moments itself, in UTC and not in local time."""
    as_json = f.to_json(f.struct("*"), {"ignoreNullFields": "false"})
    lines = [row[0] for row in rows.select(as_json).collect()]
    path.write_text("[" + ",\n".join(lines) + "]")


def _step(number: int) -> None:
    _say(done=number, total=len(STEPS), step=STEPS[number])


def _say(**values: str | int) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m analytics.jobs", description=__doc__)
    parser.add_argument("--log", type=Path, required=True, help="the folder of the event log")
    parser.add_argument("--day", type=date.fromisoformat, required=True, help="a UTC day")
    parser.add_argument("--out", type=Path, required=True, help="an existing folder for results")
    parser.add_argument(
        "--now",
        type=datetime.fromisoformat,
        default=datetime.now(UTC),
        help="the moment up to which the log was recorded; with time zone",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
