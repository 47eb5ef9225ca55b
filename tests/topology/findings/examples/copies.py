"""Examples of the rules in `topology.findings.rules.copies`."""

from __future__ import annotations

from tests.topology.findings.examples.example import Example, Examples, binding, exchange, queue

_WAITS = (
    queue("f17-wait-1", ttl=5_000, dlx="", key="f17-work"),
    queue("f17-wait-2", ttl=60_000, dlx="", key="f17-work"),
    queue("f17-work"),
)


def _parking(key: str) -> Example:
    """A work queue with a wildcard, and its queue for failed messages with this key."""
    return Example(
        queues=(queue("f33-orders"), queue("f33-orders.parking")),
        exchanges=(exchange("f33-events", "topic"),),
        bindings=(
            binding("f33-events", "f33-orders", "f33-orders.#"),
            binding("f33-events", "f33-orders.parking", key),
        ),
    )


EXAMPLES = {
    "F17": Examples(
        failing=Example(
            queues=_WAITS,
            exchanges=(exchange("f17-delay"),),
            bindings=(
                binding("f17-delay", "f17-wait-1", "f17-orders"),
                binding("f17-delay", "f17-wait-2", "f17-orders"),
            ),
        ),
        passing=Example(
            queues=_WAITS,
            exchanges=(exchange("f17-delay"),),
            bindings=(
                binding("f17-delay", "f17-wait-1", "f17-soon"),
                binding("f17-delay", "f17-wait-2", "f17-later"),
            ),
        ),
    ),
    "F18": Examples(
        failing=Example(
            queues=(
                queue("f18-billing", dlx="", key="f18-wait"),
                queue("f18-shipping"),
                queue("f18-wait", ttl=60_000, dlx="f18-events", key="f18-order"),
            ),
            exchanges=(exchange("f18-events", "topic"),),
            bindings=(
                binding("f18-events", "f18-billing", "f18-order"),
                binding("f18-events", "f18-shipping", "f18-order"),
            ),
        ),
        passing=Example(
            queues=(
                queue("f18-billing", dlx="", key="f18-wait"),
                queue("f18-shipping"),
                queue("f18-wait", ttl=60_000, dlx="", key="f18-billing"),
            ),
            exchanges=(exchange("f18-events", "topic"),),
            bindings=(
                binding("f18-events", "f18-billing", "f18-order"),
                binding("f18-events", "f18-shipping", "f18-order"),
            ),
        ),
    ),
    "F33": Examples(
        failing=_parking("f33-orders.parked"),
        passing=_parking("f33-parked"),
    ),
}
