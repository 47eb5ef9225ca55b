"""The rate at which a source gives out messages."""

from __future__ import annotations

import sys


class RateLimiter:
    """Limits publishing to `rate` messages a second; None is no limit. `now` is in seconds."""

    def __init__(self, rate: float | None, now: float) -> None:
        self._rate, self._at, self._filled = rate, now, 1.0

    def allows(self, now: float) -> int:
        """How many messages may be published now."""
        if self._rate is None:
            return sys.maxsize
        # An unused share lasts a quarter of a second, so that no burst follows a pause.
        most = max(1.0, self._rate / 4)
        self._filled = min(most, self._filled + (now - self._at) * self._rate)
        self._at = now
        return int(self._filled)

    def take(self, number: int) -> None:
        self._filled -= number
