"""Runs the Spark jobs in a child process: its progress, its end, its results.

The child has its own process group and dies with this process, whatever kills it: Spark
must never go on alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import IO, Any, TypeAlias

JOBS = "analytics.jobs"
IMPORT_JOB = "analytics.jobs.importing"
COMPACTION_JOB = "analytics.jobs.compaction"
TABLES = (
    *("accuracy", "uncounted", "histogram", "hours", "retries", "attempts", "outcomes"),
    *("recoveries", "causes", "losses", "unexplained", "dead_letters", "groups", "releases"),
    *("probes", "early", "failures"),
)
EXCLUDED = "excluded"
NO_DATA_CODE = 4
# Folders in the log, which is writable and has room; their names keep every reader of days out.
SCRATCH, COMPACTION_SCRATCH = "_nightly", "_compaction"
PULSE_SECONDS = 0.5
# Characters that are kept of the end of what the jobs of a run print.
MOST_OUTPUT = 16_000
# End of the name of a step that was done during others.
CONCURRENT = " (during other steps)"
MISSING = (
    "PySpark is not installed, so nothing is computed. Run “pip install 'delayboard[spark]'”, and "
    "install Java 17 or newer."
)
ROOT = Path(__file__).resolve().parent.parent
PR_SET_PDEATHSIG = 1

Pulse: TypeAlias = Callable[[int, int], None]
Row: TypeAlias = Mapping[str, Any]


@dataclass
class JobReport:
    """What the jobs of one run reported, also when they failed; the caller adds its own steps."""

    steps: list[tuple[str, float]] = field(default_factory=list)
    """Their names and seconds, in their order."""
    spark_version: str = ""
    peak_memory_bytes: int | None = None
    """Of the driver's process, the largest; None where it is not on this machine."""
    output: str = ""
    """The end of what the jobs printed on standard error."""
    _began: float = 0.0

    def begin_step(self, name: str) -> None:
        """End the step before, if one is open, and begin this one."""
        self.end_step()
        self.steps.append((name, 0.0))
        self._began = monotonic()

    def end_step(self) -> None:
        if self._began:
            name, _ = self.steps.pop()
            self.steps.append((name, round(monotonic() - self._began, 2)))
        self._began = 0.0

    def read(self, message: Mapping[str, Any]) -> None:
        """Store the values of a message of the job."""
        if "step" in message:
            self.begin_step(str(message["step"]))
        if "concurrent" in message:
            # The last one is open.
            name = f"{message['concurrent']}{CONCURRENT}"
            self.steps.insert(-1, (name, float(message["seconds"])))
        self.spark_version = str(message.get("spark_version", self.spark_version))[:40]
        if peak := message.get("peak_memory_bytes"):
            self.peak_memory_bytes = max(int(peak), self.peak_memory_bytes or 0)


class LaunchError(Exception):
    """The job failed; the message is a sentence with what it said."""


class NoData(LaunchError):
    """The log contains nothing for the day; the message says so."""


@dataclass(frozen=True)
class Result:
    """What the jobs found out: by table of TABLES its rows, and the count of lines read."""

    lines: int
    malformed: int
    tables: Mapping[str, Sequence[Row]]
    excluded: Mapping[str, int] = field(default_factory=dict)
    """Lines that are in no figure, by reason."""


def is_local() -> bool:
    """Whether Spark runs on this machine, and not at SPARK_MASTER or SPARK_REMOTE."""
    is_here = (os.environ.get("SPARK_MASTER") or "local").startswith("local")
    return is_here and not os.environ.get("SPARK_REMOTE")


def run_day(
    log: Path,
    day: date,
    results: str,
    *,
    pulse: Pulse,
    job: JobReport | None = None,
    compact_to: str = "",
    parking: Mapping[str, Sequence[str]] | None = None,
) -> Result:
    """Compute one UTC day from the log; the rows lie at the URL `results` as Parquet too.

    With `compact_to`, which needs local Spark, the day is compacted too, as by run_compaction:
    first, or a tiny day beside the rest. `parking` are the parking queues by broker: what the log
    shows to be published there was given up.

    `pulse(done, total)` is called at least once a second; what it raises ends the job and
    is passed on. Raises NoData, and LaunchError for anything else that goes wrong.
    """
    with scratch(log.absolute() / SCRATCH / day.isoformat()) as out:
        arguments = ["--log", str(log.absolute()), "--day", day.isoformat()]
        arguments += ["--results", results, "--out", str(out), "--compact", compact_to]
        arguments += ["--parking", json.dumps({} if parking is None else dict(parking))]
        run_module(JOBS, arguments, pulse=pulse, job=job)
        summary = json.loads((out / "summary.json").read_text())
        tables = {name: _rows(out / f"{name}.jsonl") for name in TABLES}
        repeats = {row["reason"]: row["lines"] for row in _rows(out / f"{EXCLUDED}.jsonl")}
    return Result(summary["lines"], summary["malformed"], tables, summary["excluded"] | repeats)


def run_compaction(
    log: Path, day: date, url: str, *, pulse: Pulse, job: JobReport | None = None
) -> None:
    """Write the finished hours of a UTC day as Parquet below `url`. Raises as `run_day` does."""
    with scratch(log.absolute() / COMPACTION_SCRATCH) as work:
        arguments = ["--log", str(log.absolute()), "--day", day.isoformat()]
        arguments += ["--url", url, "--work", str(work)]
        run_module(COMPACTION_JOB, arguments, pulse=pulse, job=job)


def _rows(path: Path) -> list[Row]:
    """The rows of a table; one without a file has none."""
    if not path.exists():
        return []
    with path.open("rb") as lines:
        return [json.loads(line) for line in lines]


def run_import(log: Path, work: Path, *, pulse: Pulse) -> Mapping[str, Any]:
    """Turn the lines that lie in `work` into new ones for the log, left in `work`; the summary.

    Both are absolute. `pulse` as in `run_day`. Raises NoData with a file's name below `work` and
    what keeps it from being a table of events, and LaunchError.
    """
    run_module(IMPORT_JOB, ["--log", str(log), "--work", str(work)], pulse=pulse)
    summary: dict[str, Any] = json.loads((work / "summary.json").read_text())
    return summary


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """An empty folder for a job; what a killed run left in the same one is removed."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    except OSError as error:
        raise LaunchError(
            f"Delayboard cannot create the work folder of the job: {error}."
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_module(
    module: str, arguments: Sequence[str], *, pulse: Pulse, job: JobReport | None = None
) -> None:
    """Run a module as a program that dies with us. Raises as `run_day` does."""
    if not find_spec("pyspark"):
        raise LaunchError(MISSING)
    job = job or JobReport()
    reading, writing = os.pipe()
    job.begin_step("Starting the job")
    with tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(
            [sys.executable, "-m", "analytics.launch", str(os.getpid()), module, *arguments],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=complaints,
            start_new_session=True,
        )
        os.close(writing)
        try:
            last = _follow(child, reading, pulse, job)
            code = child.wait()
        finally:
            os.close(reading)
            _end(child)
            job.end_step()
            output = _end_of(complaints)
            job.output = (job.output + output)[-MOST_OUTPUT:]
        if code == NO_DATA_CODE and "no_data" in last:
            raise NoData(str(last["no_data"]))
        if code:
            raise LaunchError(_what_went_wrong(code, str(last.get("error", "")), output))


def _follow(
    child: subprocess.Popen[bytes], output: int, pulse: Pulse, job: JobReport
) -> dict[str, Any]:
    """Pass the progress on until the child closes its output; the newest value of each name."""
    last: dict[str, Any] = {}
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        while True:
            if selector.select(PULSE_SECONDS):
                piece = os.read(output, 65536)
                if not piece:
                    return last
                *lines, rest = (rest + piece).split(b"\n")
                for message in _messages(lines):
                    job.read(message)
                    last |= message
            elif child.poll() is not None:
                return last
            pulse(last.get("done", 0), last.get("total", 0))


def _messages(lines: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict):
            yield message


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill whatever is left of the group (the JVM is a grandchild), and reap the child."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _end_of(complaints: IO[bytes]) -> str:
    size = complaints.seek(0, os.SEEK_END)
    complaints.seek(max(size - MOST_OUTPUT, 0))
    # PostgreSQL takes no zero byte in a text.
    return complaints.read().decode(errors="replace").replace("\x00", "\ufffd")


def _what_went_wrong(code: int, error: str, complaints: str) -> str:
    """What the job itself said, else the end of its output."""
    if error:
        return f"The job failed: {error[:2000]}"
    lines = [line.strip() for line in complaints.splitlines() if line.strip()]
    end = f"signal {-code}" if code < 0 else f"exit code {code}"
    output = " / ".join(lines[-5:])[-2000:] or "no output"
    return f"The job failed with {end}: {output}"


def _become_job(parent: int, module: str) -> None:
    """Run the module in the child, which the kernel kills when its parent dies."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0 or os.getppid() != parent:
        sys.exit("The process that started this job ended.")
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    _parent = int(sys.argv.pop(0))
    _become_job(_parent, sys.argv[0])
