"""Which policy applies to each queue, where RabbitMQ's answer does not include it: pure.

The matching policy with the highest priority applies, together with one operator policy. For a
number in both the smaller one applies, for any other argument the operator policy's
(rabbit_policy.erl and rabbit_policies.erl, 3.10.8 to 4.3.5).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

# How Python reads a regular expression; typeshed has neither module.
_parser, tokens = (importlib.import_module(f"re.{name}") for name in ("_parser", "_constants"))

# Value of apply-to -> the types of queues that it names, none for every type.
_TO_QUEUES: Mapping[str, tuple[str, ...]] = {
    **{"all": (), "queues": (), "streams": ("stream",)},
    **{"classic_queues": ("classic",), "quorum_queues": ("quorum",)},
}
_TO_EXCHANGES: Mapping[str, tuple[str, ...]] = {"all": (), "exchanges": ()}
# Most repeats and characters of a pattern that is searched: Python's search has no time limit.
MOST_REPEATS, MOST_LENGTH = 4, 1000
_REPEATS = (tokens.MAX_REPEAT, tokens.MIN_REPEAT, tokens.POSSESSIVE_REPEAT)
_IN_NO_REPEAT = (*_REPEATS, tokens.BRANCH, tokens.GROUPREF)


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

    Returns the names of policies whose pattern Python cannot read; they are ignored.
    """
    unread: list[str] = []
    own = _sort_policies(policies, unread)
    limits = _sort_policies(operator_policies, unread)
    for row in rows:
        name, kind = str(row.get("name", "")), str(row.get("type", "classic"))
        chosen, limit = (next((p for p in s if p.fits(name, kind)), None) for s in (own, limits))
        given = dict(chosen.definition) if chosen else {}
        for key, value in (limit.definition if limit else {}).items():
            stated = given.get(key)
            is_number = isinstance(stated, int) and isinstance(value, int)
            given[key] = min(stated, value) if is_number else value
        row["policy"] = chosen.name if chosen else None
        row["operator_policy"] = limit.name if limit else None
        row["effective_policy_definition"] = given
    return unread


def name_policies(
    exchanges: Iterable[dict[str, Any]], policies: Sequence[Mapping[str, Any]]
) -> None:
    """Add `policy` to exchanges, as the API does; a pattern that Python cannot read is ignored."""
    own = _sort_policies(policies, [], _TO_EXCHANGES)
    for row in exchanges:
        name = str(row.get("name", ""))
        chosen = next((policy for policy in own if policy.pattern.search(name)), None)
        row["policy"] = chosen.name if chosen else None


def _sort_policies(
    policies: Sequence[Mapping[str, Any]],
    unread: list[str],
    applies: Mapping[str, tuple[str, ...]] = _TO_QUEUES,
) -> list[_Policy]:
    """The policies that apply, the highest priority first."""
    found = []

    def read_priority(raw: Mapping[str, Any]) -> int:
        priority = raw.get("priority")
        return priority if isinstance(priority, int) else 0

    for raw in sorted(policies, key=read_priority, reverse=True):
        types = applies.get(str(raw.get("apply-to", "all")))
        definition = raw.get("definition")
        if types is None or not isinstance(definition, Mapping):
            continue
        name = str(raw.get("name", ""))
        text = str(raw.get("pattern", ""))
        with suppress(re.error, OverflowError, RecursionError):
            pattern = re.compile(text)
            if _is_fast(text):
                found.append(_Policy(name, pattern, types, definition))
                continue
        unread.append(name)
    return found


def _is_fast(pattern: str) -> bool:
    """Whether a search cannot take longer than a polynomial of low degree in the name's length."""
    repeats = 0

    def fits(part: Any, *, is_repeated: bool) -> bool:
        nonlocal repeats
        if isinstance(part, tuple) and part and part[0] in _IN_NO_REPEAT and is_repeated:
            return False
        if isinstance(part, tuple) and part and part[0] in _REPEATS:
            repeats += 1
            is_repeated = True
        if isinstance(part, tuple | list | _parser.SubPattern):
            return all(fits(one, is_repeated=is_repeated) for one in part)
        return True

    is_short = len(pattern) <= MOST_LENGTH
    return is_short and fits(_parser.parse(pattern), is_repeated=False) and repeats <= MOST_REPEATS
