"""What is known already: findings that a check in CI accepts, by rule, vhost and object."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from topology.definitions import Identity
from topology.findings.finding import Finding

Known: TypeAlias = frozenset[tuple[str, str, Identity]]


class NotABaseline(ValueError):
    """The document is none; the message is a sentence."""


def read(document: Any) -> Known:
    """Raises NotABaseline."""
    rows = document.get("known") if isinstance(document, Mapping) else None
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
        raise NotABaseline(
            "The baseline file has an unexpected form. Write it again with --write-baseline."
        )
    return frozenset((row["rule"], row["vhost"], tuple(row["object"])) for row in rows)


def _is_row(row: Any) -> bool:
    if not isinstance(row, Mapping) or not isinstance(obj := row.get("object"), list):
        return False
    texts = (row.get("rule"), row.get("vhost"), *obj)
    return all(isinstance(text, str) for text in texts)


def write(found: Mapping[str, Iterable[Finding]]) -> dict[str, Any]:
    """All of these findings, by vhost."""
    everything = [(vhost, one) for vhost, findings in found.items() for one in findings]
    rows = {(one.rule.id, vhost, obj) for vhost, one in everything for obj in one.objects}
    return {"known": [{"rule": r, "vhost": v, "object": list(obj)} for r, v, obj in sorted(rows)]}


def without(found: Iterable[Finding], vhost: str, known: Collection[Any]) -> tuple[Finding, ...]:
    """The findings with the objects that are not known, without those of which all are."""
    left = []
    for one in found:
        hits = tuple(h for h in one.hits if (one.rule.id, vhost, h.evidence.object) not in known)
        left += [replace(one, hits=hits)] if hits else []
    return tuple(left)
