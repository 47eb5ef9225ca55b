"""Imports timeouts from outside of a broker into delay levels, or predicts what that would do.

Each line is stored, published confirmed and mandatory, and then marked, in this order and one
after the other: a run that is killed anywhere leaves at most one message that the next run may
double. Confirms are proved by later looks at the bindings: what may have gone to a tap alone is
published again by the next run, marked. A run that is killed before such a look loses it
(docs/timeouts.md).
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from django.conf import settings

from delayboard.publishing.timeout_import.check_lines import Item, LineChecker
from delayboard.publishing.timeout_import.import_tally import LineResult, Tally
from topology import audit
from topology.broker.amqp.pipeline import Answer, Pipeline, pipeline
from topology.broker.errors import BrokerError
from topology.models import State, Topology
from topology.operations.nacks import NackCheck
from topology.operations.ownership import Refusal
from topology.patterns.delay_levels.pattern import delay_levels
from topology.transfer.move import Step, move

# When a line was awaited for so long, the connection is opened again.
IDLE_SECONDS = 5.0

Line: TypeAlias = tuple[int, bytes]


def try_import(
    topology: Topology, file_name: str, lines: Iterable[Line], report: Callable[[LineResult], None]
) -> Tally:
    """What an import would do by a look at the broker; nothing is changed.

    Raises Refusal when nothing could be imported, BrokerError when the broker cannot be seen.
    """
    _refuse_unfit(topology)
    checker = LineChecker(topology, file_name)
    for number, line in lines:
        checked = checker.check(number, line)
        if isinstance(checked, Item):
            checker.destinations.take(checked.timeout.destination)
            checked = checked.verdict()
        checker.count(checked, report)
    return checker.tally


def import_timeouts(
    topology: Topology,
    file_name: str,
    lines: Iterable[Line],
    report: Callable[[LineResult], None],
    *,
    rate: float | None = None,
) -> Tally:
    """Publish what was not published before, at most `rate` messages a second.

    Raises what `try_import` raises. A later failure of the broker ends it, and `stopped` says so.
    """
    _refuse_unfit(topology)
    with _alone_with(topology):
        checker = LineChecker(topology, file_name)
        source = _Lines(checker, iter(lines), report, 1 / rate if rate else 0.0)
        try:
            try:
                _publish_all(topology, source)
            finally:
                checker.check_again(report, is_last=True)
        except (BrokerError, Refusal) as error:
            sentence = f"Stopped at line {source.number}: {error}"
            checker.tally.stopped = f"{sentence}{checker.unproven_sentence}"
        except BaseException:
            checker.tally.stopped = "The import was interrupted."
            raise
        finally:
            _record(topology, file_name, checker.tally)
    return checker.tally


def _publish_all(topology: Topology, source: _Lines) -> None:
    while not source.is_exhausted:
        source.is_idle = False
        try:
            with pipeline(topology.broker.address, "import of timeouts") as source.pipeline:
                move(
                    source,
                    source.pipeline,
                    window=1,
                    is_stopping=lambda: source.is_idle,
                    explain_nack=NackCheck(topology.broker).settle,
                )
        except BrokerError:
            # Nothing was on the way, and while the next line was awaited nobody sent heartbeats.
            if not source.is_idle:
                raise


@dataclass
class _Lines:
    """The lines of one file, of which one at a time is on the way."""

    checker: LineChecker
    lines: Iterator[Line]
    report: Callable[[LineResult], None]
    pause: float
    pipeline: Pipeline[Item] = field(init=False)
    is_exhausted: bool = False
    is_idle: bool = False
    number: int = 1
    _free_at: float = 0.0
    _next: Line | None = None

    def take(self, room: int) -> list[Step[Item]]:
        """Raises BrokerError and Refusal when the rest has no chance either."""
        if time.monotonic() < self._free_at:
            return []
        while line := self._next or self._read():
            if self.is_idle:
                return []
            self._next = None
            self.checker.check_again(self.report)
            checked = self.checker.check(*line)
            if isinstance(checked, Item):
                checked = self.checker.begin(checked, self.pipeline.declare)
            if isinstance(checked, Item):
                self._free_at = time.monotonic() + self.pause
                return [Step(checked, checked.publish)]
            self.checker.count(checked, self.report)
        self.is_exhausted = True
        return []

    def _read(self) -> Line | None:
        asked_at = time.monotonic()
        self._next = next(self.lines, None)
        if self._next:
            self.number = self._next[0]
            self.is_idle = time.monotonic() - asked_at > IDLE_SECONDS
        return self._next

    def settle(self, answers: Sequence[tuple[Item, Answer]]) -> None:
        for item, answer in answers:
            # What has no answer may be doubled by the next import.
            if answer.kind != "unknown":
                self.checker.count(self.checker.settle(item, answer), self.report)


def _refuse_unfit(topology: Topology) -> None:
    if topology.kind != delay_levels.KIND:
        raise Refusal(
            f"“{topology.name}” is not a delay levels topology, so it cannot hold every delay."
        )
    if topology.state != State.APPLIED:
        raise Refusal(f"“{topology.name}” is {topology.get_state_display()}. Apply it first.")


@contextmanager
def _alone_with(topology: Topology) -> Iterator[None]:
    """Two imports at once would take each other's lines for left ones. Raises Refusal."""
    settings.VAR.mkdir(parents=True, exist_ok=True)
    with (settings.VAR / f"import-{topology.slug}.lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refusal(
                f"Another import into “{topology.name}” is running. Wait until it ends."
            ) from None
        yield


def _record(topology: Topology, file_name: str, tally: Tally) -> None:
    audit.record(
        None,
        "timeouts imported",
        broker=topology.broker,
        what=f"{file_name} into {topology.name}",
        outcome=tally.stopped or "done",
        details={"lines": dict(tally.marks), "may_be_doubled": tally.doubled},
    )
