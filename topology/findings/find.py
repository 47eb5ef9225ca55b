"""The findings of a snapshot, the worst first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from pkgutil import iter_modules

from topology.findings import rules as modules_of_rules
from topology.findings.context import Context
from topology.findings.finding import TEXTS, Finding, Rule
from topology.findings.hit import Hit, Replacement, Severity
from topology.snapshot import Snapshot

_MODULES = [
    import_module(f"{modules_of_rules.__name__}.{one.name}")
    for one in iter_modules(modules_of_rules.__path__)
]
_RULES = {
    one.id: one for module in _MODULES for one in vars(module).values() if isinstance(one, Rule)
}
# Rules about definitions, in the order of rules.toml.
RULES = tuple(_RULES[number] for number in TEXTS if number.startswith("F"))
# Rules about live numbers, which change from one moment to the next: `lint` leaves them out.
LIVE_RULES = tuple(_RULES[number] for number in TEXTS if number.startswith("L"))


def find(snapshot: Snapshot, rules: Sequence[Rule] = RULES) -> tuple[Finding, ...]:
    """One finding for each rule and cause, by severity, then by rule, then most objects first."""
    return _find(Context(snapshot), rules)


def _find(context: Context, rules: Sequence[Rule]) -> tuple[Finding, ...]:
    return _sort(one for rule in rules for one in _group(rule, rule.check(context)))


def _sort(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """The worst first. Of commands that replace the same policy or queue, only the first: who runs
    all of them would undo it. The page applies one finding, on what is there then."""
    ordered = sorted(
        found, key=lambda one: (-one.severity, one.rule.id, -len(one.evidence), one.cause)
    )
    first: dict[str, str] = {}

    def is_first(command: str) -> bool:
        if not isinstance(command, Replacement):
            return True
        return first.setdefault(command.target, command) == command

    return tuple(replace(one, commands=tuple(filter(is_first, one.commands))) for one in ordered)


class Finder:
    """The findings of each broker, with those of live numbers.

    The rules of definitions check only a snapshot that differs in what they read.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[Context, tuple[Finding, ...]]] = {}

    def find(self, broker_id: int, snapshot: Snapshot) -> tuple[Finding, ...]:
        known = self._last.get(broker_id)
        if known is not None and _read(known[0].snapshot) == _read(snapshot):
            context, found = known[0].with_numbers(snapshot), known[1]
        else:
            context = Context(snapshot)
            found = _find(context, RULES)
        self._last[broker_id] = (context, found)
        live = _find(context, LIVE_RULES)
        return _sort((*found, *live)) if live else found


def _read(snapshot: Snapshot) -> tuple[object, ...]:
    """All that rules of definitions read of it: two with the same have the same findings."""
    policies = (snapshot.policies, snapshot.operator_policies, snapshot.policy_arguments)
    objects = (snapshot.declared, snapshot.definitions)
    return (snapshot.version, snapshot.consumed, *policies, *objects)


def _group(rule: Rule, hits: Iterable[Hit]) -> list[Finding]:
    by_cause: dict[str, list[Hit]] = {}
    for hit in hits:
        by_cause.setdefault(hit.cause, []).append(_state_condition(hit))
    found = []
    for cause, alike in by_cause.items():
        # Those without a command differ by what they replace.
        repairs = {(one, getattr(one, "target", "")): one for hit in alike for one in hit.commands}
        made = tuple(repairs.values())
        found.append(Finding(rule, cause, tuple(alike), made, tuple(filter(None, made))))
    return found


def _state_condition(hit: Hit) -> Hit:
    """What depends on more than definitions is a note, and nobody shall copy a repair for it."""
    if not hit.unless:
        return hit
    sentence = f"{hit.evidence.sentence.removesuffix('.')}, unless {hit.unless}."
    evidence = replace(hit.evidence, sentence=sentence)
    return replace(hit, evidence=evidence, commands=(), severity=Severity.STYLE)
