"""The soak itself: start everything, sample it until the time is over, account for everything."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event

from django.db import DatabaseError
from playwright.sync_api import Error as BrowserError

from delayboard.demo.processes import marked_processes
from tests.soak import desk, meters
from tests.soak.installation import Installation, Interrupted, SoakError
from tests.soak.pages import OpenPages
from tests.soak.parcels import Count, account
from tests.soak.report import counts, figures, problems
from tests.soak.traffic import Traffic
from tests.soak.verdict import Sample, judge
from topology.broker.errors import BrokerError
from topology.models import Broker

SAMPLE_SECONDS = 10.0
TELL_SECONDS = 60.0
READY_SECONDS = 30.0
# Three rounds through the delay, and then some.
DRAIN_SECONDS = 60.0
OVERDUE_SECONDS = 10.0
TICK_SECONDS = 0.25
LEGEND = """
After the warm-up, the first sixth: medians of the first and the last third, the highest, and
the fitted slope. Memory and heap in MB: a process's own pages, without those of files.
The nightly run (Spark) is no part of it, unless it passes 00:10 UTC.
"""
PAGES = {
    "page Now": "/",
    "page topology": "/topologies/orders/",
    "page dead letters": "/dead-letters/",
}


@dataclass
class Outcome:
    """What a soak has found so far; `others` are sentences about what no table shows."""

    samples: list[Sample] = field(default_factory=list)
    counts: list[Count] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        return problems(judge(self.samples), self.counts, self.others)


class Meter:
    """Takes samples and writes each down as a line of JSON."""

    def __init__(self, installation: Installation, broker: Broker, pages: OpenPages) -> None:
        self._installation = installation
        self._broker = broker
        self._pages = pages
        self._starts: dict[str, set[int]] = {}
        self._began = time.monotonic()

    def sample(self) -> Sample:
        folder = self._installation.folder
        values: dict[str, float] = {}
        for name, process in self._members().items():
            self._starts.setdefault(name, set()).add(process)
            values |= {f"{name}.{what}": n for what, n in meters.read([process]).items()}
            values[f"{name}.starts"] = len(self._starts[name])
        browser = meters.read(meters.browsers(os.getpid()))
        values["browser.memory"] = browser["memory"]
        values |= self._pages.read()
        values |= desk.figures(self._broker)
        values["installation.warnings"] = len(self._installation.warnings())
        values["broker.errors"] = self._installation.broker_errors()
        values["database (MB)"] = meters.size_mb(folder / "delayboard.sqlite3")
        values["database's journal (MB)"] = meters.size_mb(folder / "delayboard.sqlite3-wal")
        values["event log (MB)"] = meters.size_mb(folder / "log")
        return Sample(round(time.monotonic() - self._began, 1), values)

    def _members(self) -> dict[str, int]:
        assert self._installation.process is not None
        return meters.members(self._installation.process.pid)


def soak(folder: Path, seconds: float, stop: Event) -> int:
    """Run it with everything in `folder`, print the figures; the exit code.

    Ends early when `stop` is set, and says so.
    """
    outcome = Outcome()
    installation = Installation(folder / "installation", folder / "run.log", stop)
    try:
        with installation:
            Soak(installation, folder / "samples.jsonl", stop, outcome).run(seconds)
    except (SoakError, BrokerError, DatabaseError, BrowserError, OSError) as error:
        outcome.others.append(f"It did not come to its end: {error}")
    if installation.exit_code != 0:
        outcome.others.append(f"The run ended with code {installation.exit_code}, not 0.")
    left = list(marked_processes(installation.folder / "broker"))
    if left:
        outcome.others.append(f"Of the broker the processes {left} are left.")
    return report(outcome)


def report(outcome: Outcome) -> int:
    """Print everything; 0 when the soak held, else 1."""
    say(LEGEND, *figures(judge(outcome.samples)), "", *counts(outcome.counts), "")
    wrong = outcome.problems
    if not wrong:
        say("It held: memory flat, every message accounted for, nothing reconnected.")
        return 0
    say("It did NOT hold:", *(f"- {sentence}" for sentence in wrong))
    return 1


class Soak:
    """One run of it on an installation that is up; what it finds goes into `outcome`."""

    def __init__(
        self, installation: Installation, file: Path, stop: Event, outcome: Outcome
    ) -> None:
        self._installation = installation
        self._file = file
        self._stop = stop
        self._outcome = outcome
        self._topologies = desk.prepare()
        self._broker = self._topologies[0].broker

    def run(self, seconds: float) -> None:
        address = self._broker.address
        installation, others = self._installation, self._outcome.others
        with (
            OpenPages(installation.url, installation.password, PAGES) as pages,
            Traffic(address) as traffic,
        ):
            try:
                self._await(lambda: desk.are_recorded(self._topologies), READY_SECONDS, pages)
                self._await(desk.are_reported, READY_SECONDS, pages)
                self._watch(pages, seconds)
                self._settle(traffic, pages)
            finally:
                others += [f"Own traffic: {why}" for why in traffic.failures]
                others += [*pages.said, *installation.warnings()]
        self._account(traffic)

    def _watch(self, pages: OpenPages, seconds: float) -> None:
        meter = Meter(self._installation, self._broker, pages)
        began = reported = time.monotonic()
        with self._file.open("w") as lines:
            for number in range(1, int(seconds // SAMPLE_SECONDS) + 1):
                self._wait(began + number * SAMPLE_SECONDS, pages)
                sample = meter.sample()
                self._outcome.samples.append(sample)
                lines.write(json.dumps(asdict(sample)) + "\n")
                lines.flush()
                if time.monotonic() - reported >= TELL_SECONDS - 1:
                    reported = time.monotonic()
                    say(progress(sample))

    def _settle(self, traffic: Traffic, pages: OpenPages) -> None:
        """Until every message has arrived and was recorded, or clearly never will."""
        traffic.finish()
        self._await(lambda: traffic.ledger.outstanding <= 0, DRAIN_SECONDS, pages)
        self._await(lambda: desk.open_rows(self._topologies) == 0, DRAIN_SECONDS, pages)
        # What passes the delay leaves no row to wait for; the recorder gathers for a moment.
        self._wait(time.monotonic() + 2, pages)
        broker = self._broker
        if not self._await(lambda: desk.overdue_rows(broker) == 0, OVERDUE_SECONDS, pages):
            self._outcome.others.append(f"{desk.overdue_rows(broker)} messages are overdue.")

    def _account(self, traffic: Traffic) -> None:
        self._outcome.counts += account(traffic.ledger, desk.recorded(self._topologies))
        if uncertain := len(traffic.ledger.uncertain):
            self._outcome.others.append(f"{uncertain} messages were sent, or not: no answer came.")

    def _await(self, holds: Callable[[], bool], seconds: float, pages: OpenPages) -> bool:
        """Whether it came to hold within the time."""
        deadline = time.monotonic() + seconds
        while not (held := holds()) and time.monotonic() < deadline:
            self._wait(time.monotonic() + TICK_SECONDS, pages)
        return held

    def _wait(self, until: float, pages: OpenPages) -> None:
        """Until this moment (monotonic seconds). Raises Interrupted."""
        while (left := until - time.monotonic()) > 0:
            if self._stop.is_set():
                raise Interrupted("it was interrupted, so the messages are not accounted for.")
            pages.wait(min(left, TICK_SECONDS))


def progress(sample: Sample) -> str:
    """One line for whoever waits."""
    names = ("site", "worker", "traffic", "broker", "browser")
    parts = [f"{name} {sample.values.get(f'{name}.memory', 0):.0f} MB" for name in names]
    return f"{sample.seconds / 60:5.1f} min: {', '.join(parts)}"


def say(*lines: str) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()
