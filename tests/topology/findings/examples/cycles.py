"""Examples of the rules in `topology.findings.rules.cycles`."""

from __future__ import annotations

from tests.topology.findings.examples.example import Example, Examples, queue

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
    "F23": Examples(
        failing=Example(queues=(queue("f23-work", dlx="", key="f23-work"),)),
        passing=Example(
            queues=(queue("f23-work", dlx="", key="f23-dead"), queue("f23-dead")),
        ),
    ),
    "F26": Examples(
        failing=Example(queues=(queue("f26-work", type="quorum", limit=5),)),
        passing=Example(
            queues=(
                queue("f26-work", type="quorum", limit=5, dlx="", key="f26-dead"),
                queue("f26-dead"),
            )
        ),
    ),
    "F27": Examples(
        failing=Example(
            queues=(
                queue("f27-work", dlx="", key="f27-wait"),
                queue("f27-wait", ttl=60_000, dlx="", key="f27-work"),
            )
        ),
        passing=Example(
            queues=(queue("f27-work", dlx="", key="f27-dead"), queue("f27-dead")),
        ),
    ),
}
