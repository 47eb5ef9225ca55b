"""A worker under a flood: what it had recorded, its memory and everybody's CPU, every second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from delayboard.demo.processes import marked_processes
from tests.flood.counting import LineCount
from tests.flood.generator import Flood
from tests.soak import meters

EVERY_SECONDS = 1.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sample:
    """`lag` is for how long the first unrecorded message had been sent; `memory` in MB.

    `worker_cpu` and `broker_cpu` are shares of one processor since the sample before.
    """

    second: float
    sent: int
    recorded: int
    lag: float
    memory: float
    worker_cpu: float
    broker_cpu: float

    def __str__(self) -> str:
        return (
            f"{self.second:6.1f} s: sent {self.sent:8}, recorded {self.recorded:8}, "
            f"lag {self.lag:6.2f} s, worker {self.memory:4.0f} MB {self.worker_cpu:4.0%}, "
            f"broker {self.broker_cpu:4.0%}"
        )


def samples(
    flood: Flood, log: Path, worker: int, broker: Path, *, patience: float
) -> Iterator[Sample]:
    """One every second until the flood is over and recorded, or `patience` seconds after it.

    `worker` is the process, `broker` the node's folder.
    """
    count, began = LineCount(log), time.monotonic()
    cpus = [_Cpu(lambda: _with_children(worker)), _Cpu(lambda: list(marked_processes(broker)))]
    until = None
    while until is None or time.monotonic() < until:
        time.sleep(EVERY_SECONDS)
        if until is None and not flood.is_alive():
            until = time.monotonic() + patience
        recorded = count.now()
        memory = meters.read(_with_children(worker))["memory"]
        shares = [cpu.share() for cpu in cpus]
        second = time.monotonic() - began
        yield Sample(second, flood.sent, recorded, flood.lag(recorded), memory, *shares)
        if until is not None and recorded >= flood.sent:
            return


class _Cpu:
    """What some processes used of one processor since the last time."""

    def __init__(self, processes: Callable[[], list[int]]) -> None:
        self._processes = processes
        self._used, self._at = self._seconds(), time.monotonic()

    def share(self) -> float:
        used, at = self._seconds(), time.monotonic()
        share = (used - self._used) / (at - self._at)
        self._used, self._at = used, at
        return share

    def _seconds(self) -> float:
        return cpu_seconds(self._processes())


def cpu_seconds(processes: Iterable[int]) -> float:
    """What they used since they began; what ended meanwhile counts nothing."""
    ticks = 0
    for process in processes:
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def _with_children(process: int) -> list[int]:
    return [process, *meters.descendants(process)]
