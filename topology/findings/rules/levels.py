"""Sets of delay levels."""

from __future__ import annotations

from collections.abc import Iterator

from topology.findings.context import Context
from topology.findings.evidence import Hit
from topology.findings.finding import rule


def _find_incomplete(context: Context) -> Iterator[Hit]:
    for use in context.levels:
        if use.missing:
            obj = ("topology", use.name)
            for sentence in use.missing:
                yield Hit(use.name, context.evidence_of(obj, "levels", "incomplete", sentence))


INCOMPLETE = rule("F22", _find_incomplete)
