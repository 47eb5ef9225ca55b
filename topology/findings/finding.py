"""A rule, and a finding: all that it reports with one cause."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from topology.definitions import Binding, Identity, Queue
from topology.findings.context import Context
from topology.findings.hit import Evidence, Hit, Severity
from topology.routing.outcome import Walk
from topology.routing.trace_route import Answer, Question, ask, find_path
from topology.snapshot import Snapshot


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
    """All hits of one rule with one cause.

    `repairs` are what its hits have as commands; `commands` are those of them to copy.
    """

    rule: Rule
    cause: str
    hits: tuple[Hit, ...]
    repairs: tuple[str, ...]
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


def chain_of(finding: Finding, snapshot: Snapshot) -> Answer | None:
    """The way of a message through its first object, to draw; None for one that is gone."""
    obj = snapshot.definitions.get(finding.objects[0])
    if obj is None:
        return None
    context = Context(snapshot)
    match obj:
        case Binding():
            question = Question(obj.source, obj.routing_key, without_consumers=True)
            return ask(question, snapshot, context.index)
        case Queue() if obj.dead_letter_exchange is not None and obj.type != "stream":
            # Where its messages may have any key, one that nothing else uses.
            reasons, keys = context.reasons(obj), context.keys(obj)
            reason = reasons[0] if reasons else "rejected"
            walked = context.die(obj, reason, keys[0] if keys else "")
            return Answer(walked, find_path(context.index, walked, {}, context.version))
    return Answer(Walk(()), snapshot.definitions.only([obj.identity]))
