"""A rule, and a finding: all that it reports with one cause."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from topology.definitions import Identity
from topology.findings.context import Context
from topology.findings.evidence import Evidence, Hit
from topology.findings.severity import Severity


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
    hits: tuple[Hit, ...]
    commands: tuple[str, ...]

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        return tuple(dict.fromkeys(hit.evidence for hit in self.hits))

    @property
    def severity(self) -> Severity:
        """The worst of its hits."""
        return max(self.rule.severity if h.severity is None else h.severity for h in self.hits)

    @property
    def is_possible(self) -> bool:
        """Whether all of it depends on the messages, which definitions do not show."""
        return all(hit.unless for hit in self.hits)

    @property
    def title(self) -> str:
        title = f"{self.rule.title} (possible)" if self.is_possible else self.rule.title
        return f"{title}: {self.cause}" if self.cause else title

    @property
    def remedy(self) -> str:
        """What to do: that of its hits where they say it, else the rule's."""
        stated = dict.fromkeys(hit.remedy for hit in self.hits if hit.remedy)
        check = "First check whether the messages meet the condition that the evidence names. "
        return (check if self.is_possible else "") + (" ".join(stated) or self.rule.remedy)

    @property
    def key(self) -> str:
        """The same for the same rule and cause, in every process; for addresses."""
        digest = hashlib.sha256(self.cause.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.rule.id.lower()}-{digest[:12]}"

    @property
    def objects(self) -> tuple[Identity, ...]:
        return tuple(dict.fromkeys(hit.evidence.object for hit in self.hits))
