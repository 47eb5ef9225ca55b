"""Runs every part of the suite, some at once, and ends with one table: `python -m tests.run`.

What a part prints goes into var/test-PART/output.log, and on the screen when it fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
# The development mode, in the full matrix: warnings fail our tests without it too. Without its
# checks of C memory: we have no C. Not for the browser: it notes where each of Playwright's many
# callbacks was made.
DEVELOPING = ("-X", "dev")
BROKERS = ("tests/real_broker", "tests/flood")
# What the nightly job makes of a real broker's messages: where Spark runs anyway.
REPORTS = ("tests/real_broker/test_recorder.py", "tests/real_broker/test_import_of_traces.py")
# Tests of the newest broker wait more than they work: five parts of them run beside one another.
MOVES = tuple(
    f"tests/real_broker/test_{name}.py"
    for name in (
        "migrate_delays",
        "replay",
        "replay_outcome",
        "replay_stays",
    )
)
CHANGES = tuple(f"tests/real_broker/test_{name}.py" for name in ("changes", "interception"))
PATTERN_TESTS = tuple(
    f"tests/real_broker/test_{name}.py"
    for name in (
        "busy_wait",
        "delay_levels",
        "delay_queues",
        "delayed_exchange",
        "demo_retries",
        "hold_queues",
        "quorum_retry",
        "retry_ladder",
        "retry_loop",
        "retry_loop_restart",
        "retry_pair",
    )
)
QUEUES = tuple(
    f"tests/real_broker/test_{name}.py"
    for name in (
        "celery",
        "firehose",
        "probes",
        "publish_file",
        "read_queue",
        "replace_queue",
        "replace_tap",
        "taps",
    )
)
# All files that kill a node: one part starts each generation's for them.
KILLS = tuple(
    f"tests/faults/test_{name}.py"
    for name in (
        "replay",
        "parking",
        "change_kills",
        "frozen",
        "migration_kills",
        "new_queue_kills",
    )
)
MATRIX = ("-m", "long or not long", "--hypothesis-profile", "full")
SLOWEST = 10
MESSAGE = 600


def without(files: Sequence[str]) -> Sequence[str]:
    """Return what leaves these files, which another part has, out of one."""
    return [f"--ignore={file}" for file in files]


@dataclass(frozen=True)
class Part:
    """A process of its own: what pytest is asked, or the command that is run in its place."""

    name: str
    asked: Sequence[str] = ()
    command: Sequence[str] = ()

    @property
    def folder(self) -> Path:
        return ROOT / "var" / f"test-{self.name}"

    @property
    def log(self) -> Path:
        return self.folder / "output.log"

    @property
    def report(self) -> Path:
        return self.folder / "report.xml"


# What takes longest first, what only computes last: it fills the time in which others wait.
PARTS = (
    Part("faults", ("tests/faults", "tests/soak", *without(KILLS))),
    Part("kills", KILLS),
    Part("browser", ("tests/browser",)),
    Part(
        "broker-4.3",
        (*BROKERS, *without((*REPORTS, *MOVES, *CHANGES, *PATTERN_TESTS, *QUEUES)), "-k", "4.3"),
    ),
    Part("broker-3.10", (*BROKERS, "-k", "not 4.3 and not 4.0")),
    Part("moves", (*MOVES, "-k", "4.3")),
    Part("broker-4.0", (*BROKERS, "-k", "4.0")),
    Part("changes", (*CHANGES, "-k", "4.3")),
    Part("postgres", ("--postgres",)),
    Part("queues", (*QUEUES, "-k", "4.3")),
    Part("patterns", (*PATTERN_TESTS, "-k", "4.3")),
    Part("site", ("tests/site", "tests/graph")),
    Part("delayboard", ("tests/delayboard",)),
    Part("outside", ("tests/outside",)),
    Part("spark", ("tests/analytics", *REPORTS, "-k", "analytics or 4.3")),
    Part("topology", ("tests/topology",)),
    Part("check", command=("make", "--no-print-directory", "check")),
)
FOR_POSTGRES = ("-m", "not long and (postgres or both_databases)")


@dataclass(frozen=True)
class Test:
    """One case of pytest's report: its seconds, and what failed, empty for what was green."""

    seconds: float
    name: str
    failure: str


@dataclass(frozen=True)
class Outcome:
    """Whether a part was green, its seconds, those of processors, and its tests.

    Processes that outlived the one that started them are not in the seconds of processors.
    """

    part: Part
    is_green: bool
    seconds: float
    processor: float
    tests: Sequence[Test]


def main() -> int:
    """Return 0 when every part is green."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="the full matrix, as `make test-all`")
    parser.add_argument("parts", nargs="*", help=", ".join(part.name for part in PARTS))
    asked = parser.parse_args()
    if unknown := set(asked.parts) - {part.name for part in PARTS}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    parts = [part for part in PARTS if not asked.parts or part.name in asked.parts]
    if forgotten := test_folders() - {Path(word) for part in PARTS for word in part.asked}:
        parser.error(f"of no part: {', '.join(sorted(map(str, forgotten)))}")
    began = time.monotonic()
    at_once = 4 * (os.cpu_count() or 1)
    print(
        f"{len(parts)} parts, {at_once} at once; their output: var/test-PART/output.log", flush=True
    )
    outcomes = list(run(parts, at_once, is_full=asked.full))
    for outcome in outcomes:
        if not outcome.is_green:
            print(f"\n{outcome.part.name}\n{outcome.part.log.read_text(errors='replace')}")
    print(table(outcomes, time.monotonic() - began))
    print(*failures(outcomes), sep="\n")
    return 0 if all(outcome.is_green for outcome in outcomes) else 1


def test_folders() -> set[Path]:
    """Return the folders right below tests that have tests, relative to the project."""
    files = (file.relative_to(ROOT) for file in ROOT.glob("tests/**/test_*.py"))
    return {Path(*file.parts[:2]) for file in files}


def run(parts: Sequence[Part], at_once: int, *, is_full: bool) -> Iterator[Outcome]:
    """Run the parts in their order, so many at once; yield each when it ends, and say so."""
    waiting, running = list(parts), dict[Part, tuple[subprocess.Popen[bytes], float]]()
    with ended(running):
        while waiting or running:
            while waiting and len(running) < at_once:
                part = waiting.pop(0)
                running[part] = (start(part, is_full=is_full), time.monotonic())
            for part, (process, began) in list(running.items()):
                ended_pid, status, usage = os.wait4(process.pid, os.WNOHANG)
                if ended_pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    del running[part]
                    seconds, processor = time.monotonic() - began, usage.ru_utime + usage.ru_stime
                    is_green = process.returncode == 0
                    outcome = Outcome(part, is_green, seconds, processor, tests_of(part))
                    print(line(outcome), flush=True)
                    yield outcome
            time.sleep(0.2)


@contextmanager
def ended(running: dict[Part, tuple[subprocess.Popen[bytes], float]]) -> Iterator[None]:
    """End what still runs when the block ends, also by a signal."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        yield
    finally:
        for process, _ in running.values():
            os.killpg(process.pid, signal.SIGTERM)


def start(part: Part, *, is_full: bool) -> subprocess.Popen[bytes]:
    """Start the part in a process group, data folder and log of its own."""
    shutil.rmtree(part.folder, ignore_errors=True)
    part.folder.mkdir(parents=True)
    variables = {
        **os.environ,
        "DELAYBOARD_VAR": str(part.folder),
        "PYTHONMALLOC": "default",
        # Compiling every module anew takes each part half a minute.
        "PYTHONDONTWRITEBYTECODE": "",
    }
    with part.log.open("wb") as log:
        return subprocess.Popen(
            command_of(part, is_full=is_full),
            cwd=ROOT,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def command_of(part: Part, *, is_full: bool) -> Sequence[str]:
    if part.command:
        return part.command
    chosen = MATRIX if is_full else FOR_POSTGRES if "--postgres" in part.asked else ()
    python = (sys.executable, *(DEVELOPING if is_full and part.name != "browser" else ()))
    return (*python, "-m", "pytest", *part.asked, *chosen, "-q", f"--junitxml={part.report}")


def tests_of(part: Part) -> list[Test]:
    """Return the tests of pytest's report; nothing without one."""
    if not part.report.exists():
        return []
    return [
        Test(
            float(case.get("time", 0)),
            f"{case.get('classname')}::{case.get('name')}",
            "\n".join(
                text.get("message", "") for text in (*case.iter("failure"), *case.iter("error"))
            ),
        )
        for case in ElementTree.parse(part.report).iter("testcase")
    ]


def line(outcome: Outcome) -> str:
    word = "green" if outcome.is_green else "FAILED"
    numbers = columns(outcome.part.name, len(outcome.tests), outcome.seconds, outcome.processor)
    return f"{numbers}  {word}"


def columns(name: str, tests: int, seconds: float, processor: float) -> str:
    return f"{name:15} {tests or '':>6} {seconds:>8.0f} {processor:>10.0f}"


def table(outcomes: Sequence[Outcome], seconds: float) -> str:
    """Return part, tests, seconds and processor seconds of each, and the slowest tests."""
    rows = [line(outcome) for outcome in sorted(outcomes, key=lambda one: -one.seconds)]
    tests = [test for outcome in outcomes for test in outcome.tests]
    slowest = sorted(tests, key=lambda test: -test.seconds)[:SLOWEST]
    return "\n".join(
        (
            f"\n{'part':15} {'tests':>6} {'seconds':>8} {'processor':>10}",
            *rows,
            columns("all", len(tests), seconds, sum(one.processor for one in outcomes)),
            "\nThe slowest tests, in seconds:",
            *(f"{test.seconds:8.1f}  {test.name}" for test in slowest),
        )
    )


def failures(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield each failed test with the start of its message: last on the screen, seen first.

    Of a part that failed without a failed test, the end of its output.
    """
    for outcome in outcomes:
        failed = [test for test in outcome.tests if test.failure]
        for test in failed:
            yield f"\nFAILED {test.name}\n{test.failure[:MESSAGE]}"
        if not outcome.is_green and not failed:
            output = outcome.part.log.read_text(errors="replace")
            yield f"\nFAILED {outcome.part.name}\n{output[-MESSAGE:]}"


if __name__ == "__main__":
    raise SystemExit(main())
