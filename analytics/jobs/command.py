"""What the jobs have in common as commands: their progress, their end, the arguments of a day."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from analytics.compacted import MANIFEST

DONE, FAILED, NO_DATA = 0, 1, 4
# Most causes of an exception that are read: a chain of Java's exceptions may be a ring.
MOST_CAUSES = 20
SPARK_ERRORS = (PySparkException, Py4JError)


class NoData(Exception):
    """There is nothing that the job can use; the message says so."""


class JobError(Exception):
    """The job failed; the message says why."""


def run(work: Callable[[], None]) -> int:
    """Do the work and return the exit code; print why it failed."""
    try:
        work()
    except NoData as nothing:
        print_progress(no_data=str(nothing))
        return NO_DATA
    except (JobError, *SPARK_ERRORS, OSError) as error:
        why = str(error) if isinstance(error, JobError) else describe(error)
        print_progress(error=why)
        sys.stderr.write(f"{why}\n")
        return FAILED
    return DONE


def describe(error: Exception) -> str:
    """The first paragraph of an error: of Spark's own with the causes. Its JVM has to run."""
    if isinstance(error, Py4JJavaError):
        # What a Java exception says, and its first cause, if that is not part of it.
        first = cause = error.java_exception
        for _ in range(MOST_CAUSES):
            cause = cause.getCause() or cause
        lines = [str(one.toString()).split("\n\n")[0] for one in (first, cause)]
        return lines[0] if lines[1] in lines[0] else f"{lines[0]}. Cause: {lines[1]}"
    if isinstance(error, PySparkException) and error.getCondition() == "PATH_NOT_FOUND":
        path = (error.getMessageParameters() or {}).get("path", "")
        return (
            f"Parquet of the event log is missing: {path}. Restore it, or delete “{MANIFEST}” in "
            "the folder of its day in the event log, so that the job reads the lines."
        )
    return f"{type(error).__name__}: {error}".split("\n\n")[0]


def is_without_answer(error: Exception) -> bool:
    """Whether it is a call that Spark's JVM did not answer, not even with an error."""
    is_call = isinstance(error, Py4JError | ConnectionError)
    return is_call and not isinstance(error, Py4JJavaError)


def print_progress(**values: str | float) -> None:
    """Print one JSON object as a line."""
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def print_step(steps: Sequence[str], number: int) -> None:
    print_progress(done=number, total=len(steps), step=steps[number])


def day_parser(module: str, description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--log", type=Path, required=True, help="the folder of the event log")
    parser.add_argument("--day", type=date.fromisoformat, required=True, help="a UTC day")
    parser.add_argument(
        "--now",
        type=datetime.fromisoformat,
        default=datetime.now(UTC),
        help="the moment up to which the log was recorded; with time zone",
    )
    return parser
