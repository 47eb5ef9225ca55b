"""The rate at which a replay publishes."""

from __future__ import annotations

import sys


class Bucket:
    """How many may go at a rate (a second), by a clock in seconds; None is as many as one likes."""

    def __init__(self, rate: float | None, now: float) -> None:
        self._rate, self._at, self._filled = rate, now, 1.0

    def allows(self, now: float) -> int:
        if self._rate is None:
            return sys.maxsize
        # What was not used is kept for a quarter of a second, so that the rate is kept evenly.
        most = max(1.0, self._rate / 4)
        self._filled = min(most, self._filled + (now - self._at) * self._rate)
        self._at = now
        return int(self._filled)

    def take(self, number: int) -> None:
        self._filled -= number
