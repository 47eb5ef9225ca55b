"""Examples of the rules in `topology.findings.rules.dead_letter_routes`."""

from __future__ import annotations

from tests.topology.findings.examples.example import Example, Examples, binding, exchange, queue

_AT_LEAST_ONCE = queue(
    "f15-wait",
    type="quorum",
    ttl=60_000,
    dlx="f15-return",
    key="f15-work",
    strategy="at-least-once",
    overflow="reject-publish",
)

EXAMPLES = {
    "F01": Examples(
        failing=Example(queues=(queue("f01-work", dlx="f01-dead"),)),
        passing=Example(
            queues=(queue("f01-work", dlx="f01-dead"), queue("f01-failed")),
            exchanges=(exchange("f01-dead", "fanout"),),
            bindings=(binding("f01-dead", "f01-failed"),),
        ),
    ),
    "F02": Examples(
        failing=Example(
            queues=(
                queue("f02-wait", ttl=60_000, dlx="f02-return", key="f02-orders"),
                queue("f02-work"),
            ),
            exchanges=(exchange("f02-return"),),
            bindings=(binding("f02-return", "f02-work", "f02-order"),),
        ),
        passing=Example(
            queues=(
                queue("f02-wait", ttl=60_000, dlx="f02-return", key="f02-orders"),
                queue("f02-work"),
            ),
            exchanges=(exchange("f02-return"),),
            bindings=(binding("f02-return", "f02-work", "f02-orders"),),
        ),
    ),
    "F12": Examples(
        failing=Example(
            queues=(queue("f12-work", dlx="", key="f12-log"), queue("f12-log", type="stream")),
            version="3.10.8",
        ),
        passing=Example(
            queues=(queue("f12-work", dlx="", key="f12-log"), queue("f12-log", type="quorum")),
            version="3.10.8",
        ),
    ),
    "F15": Examples(
        failing=Example(
            queues=(_AT_LEAST_ONCE,),
            exchanges=(exchange("f15-return"),),
        ),
        passing=Example(
            queues=(_AT_LEAST_ONCE, queue("f15-work")),
            exchanges=(exchange("f15-return"),),
            bindings=(binding("f15-return", "f15-work", "f15-work"),),
        ),
    ),
}
