"""Measuring a call and saying a figure."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def seconds(act: Callable[[], object], times: int = 1) -> float:
    """Of one call, the fastest of `times`."""
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        act()
        best = min(best, time.perf_counter() - began)
    return best


def say(what: str, figure: float, note: str) -> None:
    sys.stdout.write(f"{what:<52} {figure:8.2f}   ({note})\n")
    sys.stdout.flush()
