"""Sets of delay levels."""

from __future__ import annotations

from collections.abc import Iterator

from topology.findings.context import Context
from topology.findings.evidence import Hit
from topology.findings.example import Example
from topology.findings.finding import Rule, Severity
from topology.patterns.delay_levels.objects import definitions
from topology.patterns.delay_levels.params import Params

_LEVELS = Example.of(definitions(Params("own", "f21", 4)))


def _incomplete(context: Context) -> Iterator[Hit]:
    for use in context.levels:
        if use.missing and not use.has_foreign_names:
            thing = ("topology", use.name)
            for sentence in use.missing:
                yield Hit(use.name, context.evidence_of(thing, "levels", "incomplete", sentence))


INCOMPLETE = Rule(
    "F21",
    Severity.TIMING,
    "Delay levels are incomplete",
    "Each level adds one power of two to a delay, and a message passes all levels. A level that is "
    "missing or differs makes delays wrong or loses messages.",
    "https://docs.particular.net/transports/rabbitmq/delayed-delivery",
    "Adopt the discovered topology and apply its plan.",
    _incomplete,
    failing=Example(
        queues=_LEVELS.queues,
        exchanges=_LEVELS.exchanges,
        bindings=tuple(raw for raw in _LEVELS.bindings if "1.#" not in raw["routing_key"][2:]),
    ),
    passing=_LEVELS,
)
