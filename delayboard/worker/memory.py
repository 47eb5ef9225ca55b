"""How a process that moves very many messages keeps its memory."""

from __future__ import annotations

import gc

THRESHOLDS = (30_000, 20, 20)


def collect_rarely() -> None:
    """Look for garbage much less often than Python does by itself, and not in what is imported.

    A message is some twenty small objects, none of which refer to each other in circles; to look
    through those on their way again and again takes a third of a busy recorder's time.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
