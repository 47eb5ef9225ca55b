"""Examples of the rules in `topology.findings.rules.settings`."""

from __future__ import annotations

from tests.topology.findings.examples.example import Example, Examples
from topology.patterns.delay_levels.params import Params, definitions

_LEVELS = Example.of(definitions(Params("own", "f22", 4)))

EXAMPLES = {
    "F22": Examples(
        failing=Example(
            queues=_LEVELS.queues,
            exchanges=_LEVELS.exchanges,
            bindings=tuple(raw for raw in _LEVELS.bindings if "1.#" not in raw["routing_key"][2:]),
        ),
        passing=_LEVELS,
    ),
}
