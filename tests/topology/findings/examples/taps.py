"""Examples of the rules in `topology.findings.rules.settings`."""

from __future__ import annotations

from tests.topology.findings.examples.example import Example, Examples, binding, exchange, queue

EXAMPLES = {
    "F14": Examples(
        failing=Example(
            queues=(queue("delayboard.tap.f30"),),
            exchanges=(exchange("f14-orders", "fanout"),),
            bindings=(binding("f14-orders", "delayboard.tap.f30", "#"),),
        ),
        passing=Example(
            queues=(queue("delayboard.tap.f30"), queue("f14-orders")),
            exchanges=(exchange("f14-orders", "fanout"),),
            bindings=(
                binding("f14-orders", "delayboard.tap.f30", "#"),
                binding("f14-orders", "f14-orders"),
            ),
        ),
    ),
}
