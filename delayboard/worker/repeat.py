"""Repeats a background task after a pause."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from threading import Event
from time import monotonic

from delayboard.models.background_task import Beat

BEAT_SECONDS = 2.0


def repeat(do: Callable[..., object], seconds: float, *, stop: Event, beat: Beat) -> None:
    """Call `do`, and again after so many seconds, until `stop` is set.

    It gets `stop`, and `alive` to call at least every few seconds. `beat` gets the details that it
    returned last, if any.
    """
    details: Mapping[str, object] = {}
    while not stop.is_set():
        found = do(stop=stop, alive=partial(beat, details))
        details = found if isinstance(found, Mapping) else {}
        due_at = monotonic() + seconds
        is_due = False
        while not is_due:
            beat(details)
            stop.wait(min(BEAT_SECONDS, max(0.0, due_at - monotonic())))
            is_due = stop.is_set() or monotonic() >= due_at
