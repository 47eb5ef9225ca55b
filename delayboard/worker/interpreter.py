"""How the interpreter of a process that moves very many messages is set."""

from __future__ import annotations

import gc
import sys

THRESHOLDS = (30_000, 20, 20)
SWITCH_SECONDS = 0.0005


def prepare_interpreter() -> None:
    """Collect garbage rarely, and let a thread that waits for messages go on soon.

    A message is some twenty small objects, none of which refer to each other in circles; to look
    through those on their way again and again takes a third of a busy recorder's time.

    Each read and write lets other threads go on. Python lets one of them keep the interpreter for
    five milliseconds, and a forwarded message needs about six reads and writes.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)
