"""PURE: whether copies are read as they come, so that their time of recording says something."""

from __future__ import annotations


class Backlog:
    """Follows the batches of one tap and says which copies waited before they were read.

    Copies carry no time of their own, and the consumer stamps them as they come. So a
    recording counts for lateness when nothing had piled up in the broker: its batch and the
    one before it were short. At the start that is unknown.
    """

    def __init__(self) -> None:
        self.is_caught_up = False
        self._was_drained = False

    def take(self, *, is_full: bool, was_held_up: bool = False) -> None:
        """The next batch was read; `is_caught_up` now speaks of its copies.

        `was_held_up`: reading it took much longer than it should, so that they waited for us.
        """
        self.is_caught_up = self._was_drained and not is_full and not was_held_up
        self._was_drained = not is_full
