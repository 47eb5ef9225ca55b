"""Examples of the rules in `topology.findings.rules.at_least_once`."""

from __future__ import annotations

from tests.topology.findings.examples.example import (
    Example,
    Examples,
    binding,
    exchange,
    queue,
)

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
    "F15": Examples(
        failing=Example(
            queues=(
                queue("f15-wait", ttl=60_000, dlx="f15-return", **_SAFE),
                queue("f15-work"),
                queue("f15-copy", max_length=1000, overflow="reject-publish"),
            ),
            exchanges=(exchange("f15-return", "fanout"),),
            bindings=(binding("f15-return", "f15-work"), binding("f15-return", "f15-copy")),
        ),
        passing=Example(
            queues=(
                queue("f15-wait", ttl=60_000, dlx="f15-return", **_SAFE),
                queue("f15-work"),
                queue("f15-copy", max_length=1000),
            ),
            exchanges=(exchange("f15-return", "fanout"),),
            bindings=(binding("f15-return", "f15-work"), binding("f15-return", "f15-copy")),
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
    "F23": Examples(
        failing=Example(
            queues=(
                queue("f23-wait", ttl=60_000, dlx="", key="f23-work", **_SAFE),
                queue("f23-work"),
            )
        ),
        passing=Example(
            queues=(
                queue("f23-wait", ttl=60_000, dlx="", key="f23-work", max_length=100_000, **_SAFE),
                queue("f23-work"),
            )
        ),
    ),
    "F24": Examples(
        failing=Example(
            queues=(
                queue("f24-wait", type="quorum", ttl=60_000, dlx="", key="f24-work"),
                queue("f24-work"),
            )
        ),
        passing=Example(
            queues=(
                queue("f24-wait", ttl=60_000, dlx="", key="f24-work", **_SAFE),
                queue("f24-work"),
            )
        ),
    ),
}
