"""A rule, and a finding: all that it reports with one cause."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from topology.definitions import Identity
from topology.findings.context import Context
from topology.findings.evidence import Evidence, Hit


class Severity(IntEnum):
    """What happens to messages, the worst last.

    Timing: a message arrives early, late or twice. Style is a note: nothing goes wrong as long as
    the broker and the consumers work.
    """

    STYLE = 1
    COST = 2
    TIMING = 3
    STUCK = 4
    LOSS = 5

    @property
    def key(self) -> str:
        return self.name.lower()

    @property
    def label(self) -> str:
        return _LABELS[self]


_LABELS = {
    Severity.LOSS: "Loss",
    Severity.STUCK: "Stuck",
    Severity.TIMING: "Timing",
    Severity.COST: "Cost",
    Severity.STYLE: "Style",
}


@dataclass(frozen=True)
class Rule:
    """A check, and what it means. Each has examples in tests/topology/findings/examples."""

    id: str
    severity: Severity
    title: str
    explanation: str
    source: str
    remedy: str
    check: Callable[[Context], Iterable[Hit]]


TEXTS = tomllib.loads(Path(__file__).with_name("rules.toml").read_text(encoding="utf-8"))


def rule(number: str, check: Callable[[Context], Iterable[Hit]]) -> Rule:
    """The rule of this number, with its texts in rules.toml."""
    texts = dict(TEXTS[number])
    severity = Severity[texts.pop("severity").upper()]
    return Rule(id=number, severity=severity, check=check, **texts)


@dataclass(frozen=True)
class Finding:
    """All hits of one rule with one cause."""

    rule: Rule
    cause: str
    evidence: tuple[Evidence, ...]
    commands: tuple[str, ...]

    @property
    def severity(self) -> Severity:
        return self.rule.severity

    @property
    def title(self) -> str:
        return f"{self.rule.title}: {self.cause}" if self.cause else self.rule.title

    @property
    def key(self) -> str:
        """The same for the same rule and cause, in every process; for addresses."""
        digest = hashlib.sha256(self.cause.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.rule.id.lower()}-{digest[:12]}"

    @property
    def objects(self) -> tuple[Identity, ...]:
        return tuple(dict.fromkeys(evidence.object for evidence in self.evidence))
