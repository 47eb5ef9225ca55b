"""Examples of the rules in `topology.findings.rules.cycles`."""

from __future__ import annotations

from tests.topology.findings.examples.example import (
    Example,
    Examples,
    queue,
)

EXAMPLES = {
    "F04": Examples(
        failing=Example(
            queues=(
                queue("f04-work", ttl=3_600_000, dlx="", key="f04-wait"),
                queue("f04-wait", ttl=60_000, dlx="", key="f04-work"),
            )
        ),
        passing=Example(
            queues=(
                queue("f04-work", dlx="", key="f04-wait"),
                queue("f04-wait", ttl=60_000, dlx="", key="f04-work"),
            )
        ),
    ),
    "F22": Examples(
        failing=Example(queues=(queue("f22-work", dlx="", key="f22-work"),)),
        passing=Example(
            queues=(queue("f22-work", dlx="", key="f22-dead"), queue("f22-dead")),
        ),
    ),
    "F25": Examples(
        failing=Example(queues=(queue("f25-work", type="quorum", limit=5),)),
        passing=Example(
            queues=(
                queue("f25-work", type="quorum", limit=5, dlx="", key="f25-dead"),
                queue("f25-dead"),
            )
        ),
    ),
    "F26": Examples(
        failing=Example(
            queues=(
                queue("f26-work", dlx="", key="f26-wait"),
                queue("f26-wait", ttl=60_000, dlx="", key="f26-work"),
            )
        ),
        passing=Example(
            queues=(queue("f26-work", dlx="", key="f26-dead"), queue("f26-dead")),
        ),
    ),
}
