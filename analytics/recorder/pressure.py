"""Which recorders of this process are behind: what can wait leaves the processor to them."""

from __future__ import annotations

from threading import Event, Lock
from time import monotonic

# Seconds without news after which a recorder no longer counts as behind: it may have died.
FORGOTTEN_AFTER_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 1.0
CHECK_SECONDS = 0.05

_lock = Lock()
_behind: dict[str, float] = {}


def set_behind(recorder: str, *, is_behind: bool) -> None:
    """Record whether this recorder has more to read than it can process at once."""
    with _lock:
        if is_behind:
            _behind[recorder] = monotonic()
        else:
            _behind.pop(recorder, None)


def is_on() -> bool:
    """Whether any recorder is behind."""
    since = monotonic() - FORGOTTEN_AFTER_SECONDS
    with _lock:
        return any(reported_at > since for reported_at in _behind.values())


def wait_for_recorders(stop: Event) -> None:
    """Wait while recorders are behind, but not so long that nothing else is ever done."""
    until = monotonic() + LONGEST_WAIT_SECONDS
    while is_on() and monotonic() < until and not stop.is_set():
        stop.wait(CHECK_SECONDS)
