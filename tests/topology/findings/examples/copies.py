"""Examples of the rules in `topology.findings.rules.copies`."""

from __future__ import annotations

from tests.topology.findings.examples.example import (
    Example,
    Examples,
    binding,
    exchange,
    queue,
)

EXAMPLES = {
    "F16": Examples(
        failing=Example(
            queues=(
                queue("f16-wait-1", ttl=5_000, dlx="", key="f16-work"),
                queue("f16-wait-2", ttl=60_000, dlx="", key="f16-work"),
                queue("f16-work"),
            ),
            exchanges=(exchange("f16-delay"),),
            bindings=(
                binding("f16-delay", "f16-wait-1", "f16-orders"),
                binding("f16-delay", "f16-wait-2", "f16-orders"),
            ),
        ),
        passing=Example(
            queues=(
                queue("f16-wait-1", ttl=5_000, dlx="", key="f16-work"),
                queue("f16-wait-2", ttl=60_000, dlx="", key="f16-work"),
                queue("f16-work"),
            ),
            exchanges=(exchange("f16-delay"),),
            bindings=(
                binding("f16-delay", "f16-wait-1", "f16-soon"),
                binding("f16-delay", "f16-wait-2", "f16-later"),
            ),
        ),
    ),
    "F17": Examples(
        failing=Example(
            queues=(
                queue("f17-billing", dlx="", key="f17-wait"),
                queue("f17-shipping"),
                queue("f17-wait", ttl=60_000, dlx="f17-events", key="f17-order"),
            ),
            exchanges=(exchange("f17-events", "topic"),),
            bindings=(
                binding("f17-events", "f17-billing", "f17-order"),
                binding("f17-events", "f17-shipping", "f17-order"),
            ),
        ),
        passing=Example(
            queues=(
                queue("f17-billing", dlx="", key="f17-wait"),
                queue("f17-shipping"),
                queue("f17-wait", ttl=60_000, dlx="", key="f17-billing"),
            ),
            exchanges=(exchange("f17-events", "topic"),),
            bindings=(
                binding("f17-events", "f17-billing", "f17-order"),
                binding("f17-events", "f17-shipping", "f17-order"),
            ),
        ),
    ),
}
