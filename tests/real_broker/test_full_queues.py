"""What a full queue does with one message more, as the doubts of a route say it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import product

import pytest

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, call_api, every_generation
from tests.builders import address_of, eventually
from tests.publishing import publisher
from topology.broker.amqp.depths import live_depths
from topology.broker.errors import BrokerError
from topology.broker.management.client import Management
from topology.definitions import Arguments, ArgumentValue, Definitions, Queue
from topology.message import Properties, Publish
from topology.routing.walk import walk

MOST, SENT = 2, 6
KINDS, OVERFLOWS = ("classic", "quorum"), ("drop-head", "reject-publish", "reject-publish-dlx")
# What is left in the queue, the first message there, what died, and how many publishes failed.
Seen = tuple[int, str, int, bool]
WANTED: dict[str, Seen] = {
    "RabbitMQ drops the oldest message": (2, "4", 0, False),
    "RabbitMQ dead-letters the oldest message early": (2, "4", 4, False),
    "RabbitMQ rejects new messages": (2, "0", 0, True),
    "RabbitMQ dead-letters this message at once": (2, "0", 4, True),
    "RabbitMQ drops dead letters": (2, "0", 0, False),
    "": (6, "0", 0, False),
}


def list_cases() -> Iterator[tuple[str, Queue, Queue, Queue]]:
    """The limited queue, where its messages die into, and a queue whose messages die into it."""
    for n, (kind, overflow, dies) in enumerate(product(KINDS, OVERFLOWS, (False, True))):
        given: dict[str, ArgumentValue] = {
            "x-queue-type": kind,
            "x-max-length": MOST,
            "x-overflow": overflow,
        }
        if dies:
            given |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"out-{n}"}
        before: dict[str, ArgumentValue] = {"x-message-ttl": 1, "x-dead-letter-exchange": ""}
        yield (
            f"{kind} {overflow} {'with' if dies else 'without'} a dead-letter exchange",
            Queue(f"full-{n}", arguments=Arguments(given)),
            Queue(f"out-{n}"),
            Queue(
                f"before-{n}",
                arguments=Arguments({**before, "x-dead-letter-routing-key": f"full-{n}"}),
            ),
        )


@every_generation
@pytest.mark.parametrize("is_dead_letter", [False, True])
def test_a_full_queue_does_what_the_doubt_of_a_route_says(
    broker_node: PrivateNode, vhost: Vhost, is_dead_letter: bool
) -> None:
    for title, full, out, before in list_cases():
        start = before.name if is_dead_letter else full.name
        (outcome,) = walk(Definitions.of([full, out, before]), "", start).outcomes
        doubt = next((one for one in outcome.doubts if "is full, " in one), "")
        said = doubt.rpartition("is full, ")[2].removesuffix(".")
        left, first, died, is_refused = WANTED[said]
        with Management(address_of(vhost)) as management:
            for one in (full, out, before):
                management.declare_queue(one)
        refused = send(vhost, start)
        # A quorum queue takes one message more, and nobody hears of a refused dead letter.
        more = int(full.arguments["x-queue-type"] == "quorum" and is_refused)
        wanted = {full.name: left + more, out.name: died, before.name: 0}
        names = list(wanted)

        def has_settled(names: list[str] = names, wanted: dict[str, int] = wanted) -> bool:
            return live_depths(address_of(vhost), names) == wanted

        eventually(has_settled, f"{title}: {said or 'it is taken'}")
        assert bool(refused) == (is_refused and not is_dead_letter), title
        assert read_first(broker_node, vhost, full.name) == first, title


def send(vhost: Vhost, queue: str) -> int:
    """One after the other; how many the broker refused."""
    refused = SENT
    with publisher(address_of(vhost), "test") as channel:
        for number in range(SENT):
            with suppress(BrokerError):
                channel.publish(Publish("", queue, Properties(), b"%d" % number))
                refused -= 1
    return refused


def read_first(node: PrivateNode, vhost: Vhost, queue: str) -> str:
    request = {"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}
    (message,) = call_api(node, "POST", f"queues/{vhost.name}/{queue}/get", request)
    return str(message["payload"])
