"""What a broker refuses of the arguments of a queue is what the rule calls refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from urllib.error import HTTPError

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, call_api, every_generation
from tests.topology.builders import a_snapshot
from topology.definitions import MAXIMUM_TTL_MS, Arguments, ArgumentValue, Definitions, Queue
from topology.findings.find import find
from topology.findings.rules.arguments import ARGUMENTS, REFUSED

TYPES = ("classic", "quorum", "stream")
VALUES: tuple[ArgumentValue, ...] = ("5", "7D", -1, 0, 1, 256, 1.5, True, MAXIMUM_TTL_MS + 1)
# A plugin may bring a type of queues, and an import takes segments that a declare refuses.
UNDECIDED = (
    ("x-queue-type", "5"),
    ("x-queue-type", "7D"),
    ("x-stream-max-segment-size-bytes", MAXIMUM_TTL_MS + 1),
)


def list_cases() -> Iterator[dict[str, ArgumentValue]]:
    """All values on the types of queues that have the argument, and one on each other."""
    for name, known in ARGUMENTS.items():
        for kind in TYPES:
            values = known.texts + VALUES if kind in (known.queues or TYPES[:1]) else ("5",)
            for value in values:
                if (name, value) in UNDECIDED:
                    continue
                needed = {"x-dead-letter-exchange": ""} if name.startswith("x-dead-letter") else {}
                yield {"x-queue-type": kind, **needed, name: value}
    yield {"x-dead-letter-routing-key": "work"}


@every_generation
def test_the_table_of_arguments_is_what_the_broker_refuses(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    wrong = []
    for number, given in enumerate(list_cases()):
        queue = Queue(f"q-{number}", arguments=Arguments(given))
        is_expected = bool(find(a_snapshot(Definitions.of([queue])), [REFUSED]))
        path = f"queues/{vhost.name}/{queue.name}"
        is_refused = False
        try:
            call_api(broker_node, "PUT", path, {"durable": True, "arguments": given})
        except HTTPError as error:
            is_refused = error.code == 400
            error.close()
        else:
            # One that expires at once may be gone.
            with suppress(HTTPError):
                call_api(broker_node, "DELETE", path)
        if is_refused != is_expected:
            wrong.append((given, is_refused))
    assert not wrong, "\n".join(map(str, wrong))
