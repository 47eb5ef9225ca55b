"""What a rule reports of one object, and how bad that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from topology.definitions import Identity


@dataclass(frozen=True)
class Evidence:
    """One object with the setting that is wrong; `set_by` says who sets it, "" for nobody.

    `sentence` says what happens at this object.
    """

    object: Identity
    argument: str
    value: str
    set_by: str
    sentence: str


@dataclass(frozen=True)
class Hit:
    """What one rule finds at one object. Hits with one `cause` are one finding.

    `commands` are what to run, with words in capitals for what a person has to choose. `unless`
    completes the sentence where it depends on what the definitions do not show: then the hit is a
    note, without commands. `severity` and `remedy` are the rule's where they are not stated.
    """

    cause: str
    evidence: Evidence
    commands: tuple[str, ...] = ()
    unless: str = ""
    severity: Severity | None = None
    remedy: str = ""


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


@dataclass(frozen=True)
class Count:
    """So many findings of a severity; `key` is its name in an address, `mark` its shape and colour
    among the site's states."""

    key: str
    label: str
    mark: str
    number: int


def make_count(severity: Severity, number: int) -> Count:
    mark = severity.level.replace("warning", "warn")
    return Count(severity.key, severity.label, mark, number)


def make_counts(numbers: Mapping[Severity, int]) -> list[Count]:
    """The worst severity first."""
    return [make_count(severity, numbers[severity]) for severity in sorted(numbers, reverse=True)]
