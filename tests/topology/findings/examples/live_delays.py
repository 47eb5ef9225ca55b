"""Examples of the rules in `topology.findings.rules.live`."""

from __future__ import annotations

from dataclasses import replace

from tests.topology.findings.examples.example import Example, Examples, policy, queue
from topology.snapshot import QueueNumbers, Report

_QUEUES = (queue("l03-wait", dlx="", key="l03-work"), queue("l03-work"))


_SET_LATER = (policy("l03", "^l03-wait", message_ttl=5_000),)


_FULL = QueueNumbers(messages=6, unacked=0, consumers=0, state="running", still_ms=70_000)


_HOLD = (queue("l06-hold", dlx="", key="l06-work"), queue("l06-work"))


_PEEKED = (
    Report(
        "L06",
        "l06-hold",
        45,
        "45 of the first 50 messages in “l06-hold” have a shorter TTL than one before them.",
    ),
)


_MIXED = (queue("l12-hold", dlx="", key="l12-work"), queue("l12-work"))


_ALONE = QueueNumbers(messages=9, ready=9, unacked=0, consumers=0)

EXAMPLES = {
    "L03": Examples(
        failing=Example(
            queues=_QUEUES,
            policies=_SET_LATER,
            numbers={"l03-wait": _FULL},
            earlier={"l03-wait": _FULL},
        ),
        passing=Example(
            queues=_QUEUES,
            policies=(policy("l03", "^l03-wait", message_ttl=60_000),),
            numbers={"l03-wait": _FULL},
            earlier={"l03-wait": _FULL},
        ),
    ),
    "L06": Examples(
        failing=Example(queues=_HOLD, reports=_PEEKED),
        passing=Example(
            queues=_HOLD, reports=_PEEKED, numbers={"l06-hold": QueueNumbers(messages=0)}
        ),
    ),
    "L12": Examples(
        failing=Example(queues=_MIXED, numbers={"l12-hold": _ALONE}, earlier={"l12-hold": _ALONE}),
        passing=Example(
            queues=_MIXED,
            numbers={"l12-hold": replace(_ALONE, consumers=1)},
            earlier={"l12-hold": _ALONE},
        ),
    ),
}
