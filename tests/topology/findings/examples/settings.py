"""Examples of the rules in `topology.findings.rules.settings`."""

from __future__ import annotations

from tests.topology.findings.examples.example import (
    Example,
    Examples,
    binding,
    exchange,
    policy,
    queue,
)
from topology.definitions import DELAYED_TYPE

_QUEUES = (queue("f08-work", dlx="f08-dead"), queue("f08-failed"))


_BOUND = (binding("f08-dead", "f08-failed"),)

EXAMPLES = {
    "F08": Examples(
        failing=Example(
            queues=_QUEUES,
            exchanges=(exchange("f08-dead", "fanout", durable=False),),
            bindings=_BOUND,
        ),
        passing=Example(
            queues=_QUEUES, exchanges=(exchange("f08-dead", "fanout"),), bindings=_BOUND
        ),
    ),
    "F10": Examples(
        failing=Example(exchanges=(exchange("f10-orders", alternate="f10-rest"),)),
        passing=Example(
            queues=(queue("f10-unrouted"),),
            exchanges=(
                exchange("f10-orders", alternate="f10-rest"),
                exchange("f10-rest", "fanout"),
            ),
            bindings=(binding("f10-rest", "f10-unrouted"),),
        ),
    ),
    "F11": Examples(
        failing=Example(
            queues=(queue("f11-work", type="quorum", max_length=1000),),
            policies=(policy("f11", "^f11-work", overflow="reject-publish-dlx"),),
        ),
        passing=Example(
            queues=(queue("f11-work", type="quorum", max_length=1000),),
            policies=(policy("f11", "^f11-work", overflow="reject-publish"),),
        ),
    ),
    "F28": Examples(
        failing=Example(
            queues=(queue("f28-work", dlx="", key="f28-dead"), queue("f28-dead")),
            policies=(policy("f28", "^f28-work", dead_letter_exchange="f28-other"),),
        ),
        passing=Example(
            queues=(queue("f28-work"), queue("f28-dead")),
            policies=(
                policy(
                    "f28", "^f28-work", dead_letter_exchange="", dead_letter_routing_key="f28-dead"
                ),
            ),
        ),
    ),
    "F30": Examples(
        failing=Example(
            exchanges=(exchange("f30-delay", DELAYED_TYPE, delays_as="direct"),),
            version="4.0.5",
        ),
        passing=Example(exchanges=(exchange("f30-delay"),), version="4.0.5"),
    ),
}
