"""Examples of the rules in `topology.findings.rules.arguments`."""

from __future__ import annotations

from tests.topology.findings.examples.example import Example, Examples, queue


def _wait(ttl: int | str) -> Example:
    return Example(
        queues=(queue("f31-wait", ttl=ttl, dlx="", key="f31-work"), queue("f31-work")),
    )


EXAMPLES = {"F31": Examples(failing=_wait("30000"), passing=_wait(30_000))}
