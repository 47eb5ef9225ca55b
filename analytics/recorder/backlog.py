"""PURE: whether copies are read as they arrive, so that their recording time is meaningful."""

from __future__ import annotations


class Backlog:
    """Follows the batches of one tap and decides which copies waited before they were read.

    Copies carry no time of their own; the consumer stamps them on arrival. So a recording counts
    for lateness only when no backlog existed in the broker: its batch and the one before it were
    short. At the start this is unknown.
    """

    def __init__(self) -> None:
        self.is_caught_up = False
        self._was_drained = False

    def take(self, *, is_full: bool, was_held_up: bool = False) -> None:
        """The next batch was read; `is_caught_up` now applies to its copies.

        `was_held_up`: reading it took much longer than usual, so that its copies waited for us.
        """
        self.is_caught_up = self._was_drained and not is_full and not was_held_up
        self._was_drained = not is_full
