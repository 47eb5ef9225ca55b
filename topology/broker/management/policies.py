"""Which policy each queue has, where the broker's answer does not say: pure.

The matching policy of the highest priority is in force, and so is one operator policy beside it;
of a number in both the smaller one holds, of anything else the operator's (rabbit_policy.erl and
rabbit_policies.erl, 3.10.8 to 4.3.5).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# What a policy may apply to -> the types of queues, none for every type.
_TO_QUEUES: Mapping[str, tuple[str, ...]] = {
    "all": (),
    "queues": (),
    "classic_queues": ("classic",),
    "quorum_queues": ("quorum",),
    "streams": ("stream",),
}
_TO_EXCHANGES: Mapping[str, tuple[str, ...]] = {"all": (), "exchanges": ()}


@dataclass(frozen=True)
class _Policy:
    name: str
    pattern: re.Pattern[str]
    types: tuple[str, ...]
    definition: Mapping[str, Any]

    def fits(self, name: str, kind: str) -> bool:
        return (not self.types or kind in self.types) and bool(self.pattern.search(name))


def put_in_force(
    rows: Iterable[dict[str, Any]],
    policies: Sequence[Mapping[str, Any]],
    operator_policies: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Add the policies' names and `effective_policy_definition` to queues, as the API's details do.

    Returns the names of policies whose pattern Python cannot read: those are left out.
    """
    unread: list[str] = []
    own = _ordered(policies, unread)
    limits = _ordered(operator_policies, unread)
    for row in rows:
        name, kind = str(row.get("name", "")), str(row.get("type", "classic"))
        chosen = next((policy for policy in own if policy.fits(name, kind)), None)
        limit = next((policy for policy in limits if policy.fits(name, kind)), None)
        given = dict(chosen.definition) if chosen else {}
        for key, value in (limit.definition if limit else {}).items():
            given[key] = _merged(given.get(key), value)
        row["policy"] = chosen.name if chosen else None
        row["operator_policy"] = limit.name if limit else None
        row["effective_policy_definition"] = given
    return unread


def name_policies(
    exchanges: Iterable[dict[str, Any]], policies: Sequence[Mapping[str, Any]]
) -> None:
    """Add the `policy` to exchanges, as the API does; one that Python cannot read is left out."""
    own = _ordered(policies, [], _TO_EXCHANGES)
    for row in exchanges:
        name = str(row.get("name", ""))
        chosen = next((policy for policy in own if policy.pattern.search(name)), None)
        row["policy"] = chosen.name if chosen else None


def _ordered(
    policies: Sequence[Mapping[str, Any]],
    unread: list[str],
    applies: Mapping[str, tuple[str, ...]] = _TO_QUEUES,
) -> list[_Policy]:
    """Those that apply, the highest priority first."""
    found = []
    for raw in sorted(policies, key=_priority, reverse=True):
        types = applies.get(str(raw.get("apply-to", "all")))
        definition = raw.get("definition")
        if types is None or not isinstance(definition, Mapping):
            continue
        name = str(raw.get("name", ""))
        try:
            pattern = re.compile(str(raw.get("pattern", "")))
        except (re.error, OverflowError, RecursionError):
            unread.append(name)
            continue
        found.append(_Policy(name, pattern, types, definition))
    return found


def _priority(raw: Mapping[str, Any]) -> int:
    priority = raw.get("priority")
    return priority if isinstance(priority, int) else 0


def _merged(own: Any, limit: Any) -> Any:
    return min(own, limit) if isinstance(own, int) and isinstance(limit, int) else limit
