"""Nodes that are killed, as a power cut would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, call_api, root_of
from tests.builders import address_of
from tests.rooted import make_node
from topology.broker.management.client import Management
from topology.definitions import Arguments, Queue

KINDS = ("classic", "quorum")
# What replays go to, and what parkers take from.
QUEUES = ("orders", "dead")


@contextmanager
def mortal(folder: Path, generation: str) -> Iterator[PrivateNode]:
    """A node to be killed, with its queues in a vhost for each type, which is named as the type.

    The queues outlive a kill, for the node was stopped in good order since they were declared. Of
    one declared a second before the kill, whatever was confirmed into it, 3.10.8 and 4.0.5 know
    nothing afterwards in about one of a hundred kills, a classic one; and 4.3.6 begins a quorum
    queue anew (rabbitmq-server issue 15725).
    """
    node = make_node(folder, "mortal", statistics_interval_ms=1000, root=root_of(generation))
    node.start()
    try:
        for kind in KINDS:
            call_api(node, "PUT", f"vhosts/{kind}", {})
            with Management(address_of(vhost_of(node, kind))) as management:
                for name in QUEUES:
                    arguments = Arguments({"x-queue-type": kind})
                    management.declare_queue(Queue(name, arguments=arguments))
        node.stop()
        node.start()
        yield node
    finally:
        node.kill()


def vhost_of(node: PrivateNode, kind: str) -> Vhost:
    """The vhost of the queues of this type."""
    url = f"{node.amqp_url.rpartition('/')[0]}/{kind}"
    return Vhost(url, node.management_url, kind, node.username, node.password)
