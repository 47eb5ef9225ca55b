"""Sets of delay levels."""

from __future__ import annotations

from collections.abc import Iterator

from topology.findings.context import Context
from topology.findings.evidence import Hit
from topology.findings.finding import Rule, Severity


def _find_incomplete(context: Context) -> Iterator[Hit]:
    for use in context.levels:
        if use.missing and not use.has_foreign_names:
            obj = ("topology", use.name)
            for sentence in use.missing:
                yield Hit(use.name, context.evidence_of(obj, "levels", "incomplete", sentence))


INCOMPLETE = Rule(
    "F22",
    Severity.TIMING,
    "Delay levels are incomplete",
    "Each level adds one power of two to a delay, and a message passes all levels. A level that is "
    "missing or differs makes delays wrong or loses messages.",
    "https://docs.particular.net/transports/rabbitmq/delayed-delivery",
    "Adopt the discovered topology and apply its plan.",
    _find_incomplete,
)
