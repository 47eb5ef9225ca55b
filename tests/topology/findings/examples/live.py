"""Examples of the rules in `topology.findings.rules.live`."""

from __future__ import annotations

from tests.topology.findings.examples.example import Example, Examples, queue
from topology.definitions import TAP_PREFIX
from topology.exports.resources import Raw
from topology.snapshot import QueueNumbers


def _at_least_once(name: str, key: str) -> Raw:
    return queue(
        name,
        type="quorum",
        ttl=1_000,
        dlx="",
        key=key,
        strategy="at-least-once",
        overflow="reject-publish",
    )


_LEVEL = _at_least_once("l02-wait", "l02-gone")


_SLOW = (_at_least_once("l05-wait", "l05-next"), queue("l05-next"))


_DEAD = (queue("l09-work", dlx="", key="l09-dead"), queue("l09-dead"))


_READ = (queue("l11-work", dlx="", key="l11-dead"), queue("l11-dead"))


_TAP = f"{TAP_PREFIX}l10"

EXAMPLES = {
    "L02": Examples(
        failing=Example(
            queues=(_LEVEL,),
            numbers={"l02-wait": QueueNumbers(messages=3, ready=0, unacked=0)},
            earlier={"l02-wait": QueueNumbers(messages=3, ready=0, unacked=0)},
        ),
        passing=Example(
            queues=(_LEVEL, queue("l02-gone")),
            numbers={"l02-wait": QueueNumbers(messages=3, ready=0, unacked=0)},
            earlier={"l02-wait": QueueNumbers(messages=3, ready=3, unacked=0)},
        ),
    ),
    "L05": Examples(
        failing=Example(
            queues=_SLOW,
            numbers={"l05-wait": QueueNumbers(900, 400, 0, 0, 100.0, published=9_000)},
            earlier={"l05-wait": QueueNumbers(600, 400, 0, 0, 100.0, published=2_000)},
        ),
        passing=Example(
            queues=_SLOW,
            numbers={"l05-wait": QueueNumbers(410, 400, 0, 0, 100.0, published=9_000)},
            earlier={"l05-wait": QueueNumbers(410, 400, 0, 0, 100.0, published=2_000)},
        ),
    ),
    "L09": Examples(
        failing=Example(
            queues=_DEAD,
            numbers={"l09-dead": QueueNumbers(messages=9, consumers=0)},
            earlier={"l09-dead": QueueNumbers(messages=2, consumers=0)},
        ),
        passing=Example(
            queues=_DEAD,
            numbers={"l09-dead": QueueNumbers(messages=9, consumers=0)},
            earlier={"l09-dead": QueueNumbers(messages=9, consumers=0)},
        ),
    ),
    "L10": Examples(
        failing=Example(
            queues=(queue(_TAP),),
            numbers={_TAP: QueueNumbers(ready=5, consumers=0)},
            earlier={_TAP: QueueNumbers(ready=2, consumers=0)},
        ),
        passing=Example(
            queues=(queue(_TAP),),
            numbers={_TAP: QueueNumbers(ready=500, consumers=1)},
            earlier={_TAP: QueueNumbers(ready=2, consumers=1)},
        ),
    ),
    "L11": Examples(
        failing=Example(queues=_READ, numbers={"l11-dead": QueueNumbers(messages=9, consumers=0)}),
        passing=Example(queues=_READ, numbers={"l11-dead": QueueNumbers(messages=9, consumers=1)}),
    ),
}
