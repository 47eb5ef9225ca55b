"""How bad a finding is."""

from __future__ import annotations

from enum import IntEnum


class Severity(IntEnum):
    """What happens to messages, the worst last.

    Refused: RabbitMQ does not take the object, and of a file of definitions nothing after it.
    Timing: a message arrives early, late or twice. Style is a note: nothing goes wrong as long as
    the broker and the consumers work, or it depends on the messages whether something does.
    """

    STYLE = 1
    COST = 2
    TIMING = 3
    STUCK = 4
    LOSS = 5
    REFUSED = 6

    @property
    def key(self) -> str:
        return self.name.lower()

    @property
    def level(self) -> str:
        """As SARIF has it."""
        return {1: "note", 2: "warning", 3: "warning"}.get(self, "error")

    @property
    def label(self) -> str:
        return self.name.capitalize()
