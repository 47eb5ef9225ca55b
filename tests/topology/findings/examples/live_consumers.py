"""Examples of the rules in `topology.findings.rules.live_consumers`."""

from __future__ import annotations

from dataclasses import replace

from tests.topology.findings.examples.example import Example, Examples, queue
from topology.snapshot import QueueNumbers

_RETRY = (
    queue("l04-work", dlx="", key="l04-wait"),
    queue("l04-wait", ttl=60_000, dlx="", key="l04-work"),
)


_CYCLE = (
    queue("l08-work", dlx="", key="l08-wait"),
    queue("l08-wait", ttl=60_000, dlx="", key="l08-work"),
)


_LOOP = QueueNumbers(consumers=1, deliver_rate=100.0, redeliver_rate=100.0, ack_rate=0.0)


_FAILING = QueueNumbers(consumers=1, deliver_rate=10.0, redeliver_rate=0.0, ack_rate=1.0)

EXAMPLES = {
    "L01": Examples(
        failing=Example(
            queues=(queue("l01-work", type="quorum", limit=5),),
            numbers={"l01-work": replace(_LOOP, redeliver_rate=80.0)},
        ),
        passing=Example(
            queues=(
                queue("l01-work", type="quorum", limit=5, dlx="", key="l01-dead"),
                queue("l01-dead"),
            ),
            numbers={"l01-work": replace(_LOOP, redeliver_rate=80.0)},
        ),
    ),
    "L04": Examples(
        failing=Example(queues=_RETRY, numbers={"l04-wait": QueueNumbers(consumers=1)}),
        passing=Example(queues=_RETRY, numbers={"l04-work": QueueNumbers(consumers=1)}),
    ),
    "L07": Examples(
        failing=Example(queues=(queue("l07-work"),), numbers={"l07-work": _LOOP}),
        passing=Example(
            queues=(queue("l07-work"),), numbers={"l07-work": replace(_LOOP, redeliver_rate=2.0)}
        ),
    ),
    "L08": Examples(
        failing=Example(
            queues=_CYCLE,
            numbers={"l08-work": _FAILING, "l08-wait": QueueNumbers(messages=900)},
            earlier={"l08-work": _FAILING, "l08-wait": QueueNumbers(messages=500)},
        ),
        passing=Example(
            queues=_CYCLE,
            numbers={
                "l08-work": replace(_FAILING, ack_rate=9.0),
                "l08-wait": QueueNumbers(messages=900),
            },
            earlier={"l08-work": _FAILING, "l08-wait": QueueNumbers(messages=500)},
        ),
    ),
}
