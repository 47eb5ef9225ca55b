"""One Spark for many small jobs: of what each costs alone, nearly all is Spark's start.

`python -m tests.analytics.warm_spark FOLDER` takes jobs by its standard input, as lines of JSON
`[module, [argument, …], bytes]`, and runs each as a program would for so many bytes of log. What a
job prints is printed, then `{"exit": 0}`; what it complains of lies in FOLDER/complaints.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

from pyspark.sql import SparkSession

from analytics import launch
from analytics.jobs import session


class RunModule(Protocol):
    """What launch.run_module does."""

    def __call__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        pulse: launch.Pulse,
        job: launch.JobReport | None = None,
        input_bytes: int = 0,
    ) -> None: ...


@contextmanager
def started(folder: Path) -> Iterator[RunModule]:
    """Spark as a child of this process, with what runs a job in it."""
    # Python's workers are the children of the JVM: where to find us, the environment says.
    variables = os.environ | {"PYTHONPATH": str(launch.ROOT)}
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.analytics.warm_spark", str(folder)],
        cwd=launch.ROOT,
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with server:
        assert server.stdin is not None
        assert server.stdout is not None
        jobs, said = server.stdin, server.stdout

        def run_module(
            module: str,
            arguments: Sequence[str],
            *,
            pulse: launch.Pulse,
            job: launch.JobReport | None = None,
            input_bytes: int = 0,
        ) -> None:
            job = job or launch.JobReport()
            jobs.write(json.dumps([module, arguments, input_bytes]) + "\n")
            jobs.flush()
            last: dict[str, Any] = {}
            while "exit" not in last:
                line = said.readline()
                assert line, "Spark has ended"
                job.read(message := json.loads(line))
                last |= message
                pulse(last.get("done", 0), last.get("total", 0))
            job.end_step()
            if last["exit"] == launch.NO_DATA_CODE:
                raise launch.NoData(last["no_data"])
            if last["exit"]:
                raise launch.LaunchError((folder / "complaints").read_text())

        yield run_module


def main(folder: Path) -> None:
    spark = session.start_at("local[2]", "tests", scratch=folder, input_bytes=0)
    input_bytes = 0

    def start(*_: object, **__: object) -> SparkSession:
        return session.tuned(spark.newSession(), input_bytes)

    def stop(ended: SparkSession) -> None:
        ended.catalog.clearCache()

    with (
        patch.object(session, "start", start),
        patch.object(session, "start_at", start),
        patch.object(session, "stop_context", stop),
    ):
        for line in sys.stdin:
            module, arguments, input_bytes = json.loads(line)
            code = run(module, arguments, folder / "complaints")
            sys.stdout.write(json.dumps({"exit": code}) + "\n")
            sys.stdout.flush()
    spark.stop()


def run(module: str, arguments: Sequence[str], complaints: Path) -> str | int | None:
    """Run the module with these arguments; the code that it ends with."""
    sys.argv[1:] = arguments
    with complaints.open("w") as file, redirect_stderr(file):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            return ended.code
    return 0


if __name__ == "__main__":
    main(Path(sys.argv[1]))
