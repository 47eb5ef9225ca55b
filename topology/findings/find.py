"""The findings of a snapshot, the worst first."""

from __future__ import annotations

from collections.abc import Sequence

from topology.findings.context import Context
from topology.findings.evidence import Hit
from topology.findings.finding import Finding, Rule
from topology.findings.table import RULES
from topology.snapshot import Snapshot


def find(snapshot: Snapshot, rules: Sequence[Rule] = RULES) -> tuple[Finding, ...]:
    """One finding for each rule and cause, by severity, then by rule, then most objects first."""
    context = Context(snapshot)
    found = [one for rule in rules for one in _grouped(rule, list(rule.check(context)))]
    found.sort(key=lambda one: (-one.severity, one.rule.id, -len(one.evidence), one.cause))
    return tuple(found)


def is_alike(first: Snapshot, second: Snapshot) -> bool:
    """Whether both have the same findings for sure: they differ in numbers alone."""
    return _read(first) == _read(second)


class Finder:
    """The findings of each broker, worked out only when a snapshot differs in what rules read."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Snapshot, tuple[Finding, ...]]] = {}

    def find(self, broker_id: int, snapshot: Snapshot) -> tuple[Finding, ...]:
        known = self._last.get(broker_id)
        is_known = known is not None and is_alike(known[0], snapshot)
        found = known[1] if known is not None and is_known else find(snapshot)
        self._last[broker_id] = (snapshot, found)
        return found


def _read(snapshot: Snapshot) -> tuple[object, ...]:
    """All that rules read of it."""
    return (
        snapshot.version,
        snapshot.consumed,
        snapshot.policies,
        snapshot.operator_policies,
        snapshot.policy_arguments,
        snapshot.declared,
        snapshot.definitions,
    )


def _grouped(rule: Rule, hits: Sequence[Hit]) -> list[Finding]:
    by_cause: dict[str, list[Hit]] = {}
    for hit in hits:
        by_cause.setdefault(hit.cause, []).append(hit)
    return [
        Finding(
            rule,
            cause,
            tuple(dict.fromkeys(hit.evidence for hit in alike)),
            tuple(dict.fromkeys(command for hit in alike for command in hit.commands)),
        )
        for cause, alike in by_cause.items()
    ]
