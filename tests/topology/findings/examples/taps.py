"""Examples of the rules in `topology.findings.rules.taps`."""

from __future__ import annotations

from tests.topology.findings.examples.example import (
    Example,
    Examples,
    binding,
    exchange,
    queue,
)

EXAMPLES = {
    "F30": Examples(
        failing=Example(
            queues=(queue("delayboard.tap.f30"),),
            exchanges=(exchange("f30-orders", "fanout"),),
            bindings=(binding("f30-orders", "delayboard.tap.f30", "#"),),
        ),
        passing=Example(
            queues=(queue("delayboard.tap.f30"), queue("f30-orders")),
            exchanges=(exchange("f30-orders", "fanout"),),
            bindings=(
                binding("f30-orders", "delayboard.tap.f30", "#"),
                binding("f30-orders", "f30-orders"),
            ),
        ),
    ),
}
