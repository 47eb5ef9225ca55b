"""Examples of the rules in `topology.findings.rules.dead_letter_routes`."""

from __future__ import annotations

from tests.topology.findings.examples.example import Example, Examples, binding, exchange, queue

_SAFE = {"type": "quorum", "strategy": "at-least-once", "overflow": "reject-publish"}


_FULL = {"max_length": 1000, "overflow": "reject-publish"}

EXAMPLES = {
    "F09": Examples(
        failing=Example(
            queues=(
                queue(
                    "f09-wait",
                    type="quorum",
                    ttl=60_000,
                    dlx="",
                    key="f09-work",
                    strategy="at-least-once",
                ),
                queue("f09-work"),
            )
        ),
        passing=Example(
            queues=(
                queue("f09-wait", ttl=60_000, dlx="", key="f09-work", **_SAFE),
                queue("f09-work"),
            )
        ),
    ),
    "F16": Examples(
        failing=Example(
            queues=(
                queue("f16-wait", ttl=60_000, dlx="f16-return", **_SAFE),
                queue("f16-work"),
                queue("f16-copy", max_length=1000, overflow="reject-publish"),
            ),
            exchanges=(exchange("f16-return", "fanout"),),
            bindings=(binding("f16-return", "f16-work"), binding("f16-return", "f16-copy")),
        ),
        passing=Example(
            queues=(
                queue("f16-wait", ttl=60_000, dlx="f16-return", **_SAFE),
                queue("f16-work"),
                queue("f16-copy", max_length=1000),
            ),
            exchanges=(exchange("f16-return", "fanout"),),
            bindings=(binding("f16-return", "f16-work"), binding("f16-return", "f16-copy")),
        ),
    ),
    "F13": Examples(
        failing=Example(
            queues=(queue("f13-work", dlx="", key="f13-dead"), queue("f13-dead", **_FULL)),
        ),
        passing=Example(
            queues=(
                queue("f13-work", dlx="", key="f13-dead"),
                queue("f13-dead", type="quorum", **_FULL),
            ),
        ),
    ),
    "F24": Examples(
        failing=Example(
            queues=(
                queue("f24-wait", ttl=60_000, dlx="", key="f24-work", **_SAFE),
                queue("f24-work"),
            )
        ),
        passing=Example(
            queues=(
                queue("f24-wait", ttl=60_000, dlx="", key="f24-work", max_length=100_000, **_SAFE),
                queue("f24-work"),
            )
        ),
    ),
    "F25": Examples(
        failing=Example(
            queues=(
                queue("f25-wait", type="quorum", ttl=60_000, dlx="", key="f25-work"),
                queue("f25-work"),
            )
        ),
        passing=Example(
            queues=(
                queue("f25-wait", ttl=60_000, dlx="", key="f25-work", **_SAFE),
                queue("f25-work"),
            )
        ),
    ),
}
