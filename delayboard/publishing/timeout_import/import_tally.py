"""The result of each line of an import of timeouts, and the counts of all."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Mark: TypeAlias = Literal["due", "waits", "known", "refused", "unknown", "malformed"]


@dataclass(frozen=True)
class LineResult:
    """What becomes, or would become, of a line; `destination` is "" for a malformed one."""

    number: int
    mark: Mark
    destination: str
    sentence: str
    may_be_doubled: bool = False


@dataclass
class Tally:
    """Lines by outcome, and by destination; `stopped` says why the rest was not read.

    `unbound` are destinations that are not bound to the levels before.
    """

    marks: Counter[Mark] = field(default_factory=Counter)
    destinations: defaultdict[str, Counter[Mark]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    unbound: set[str] = field(default_factory=set)
    doubled: int = 0
    stopped: str = ""

    @property
    def published(self) -> int:
        return self.marks["due"] + self.marks["waits"]

    @property
    def excluded(self) -> int:
        return self.marks["refused"] + self.marks["unknown"] + self.marks["malformed"]

    def remove(self, verdict: LineResult) -> None:
        """What was counted, and turned out otherwise."""
        self.marks[verdict.mark] -= 1
        self.doubled -= verdict.may_be_doubled
        self.destinations[verdict.destination][verdict.mark] -= 1
        self.destinations[verdict.destination] += Counter()

    def add(self, verdict: LineResult) -> None:
        self.marks[verdict.mark] += 1
        self.doubled += verdict.may_be_doubled
        if verdict.destination:
            self.destinations[verdict.destination][verdict.mark] += 1
