"""A confirmed publish beside a get, on this machine's RabbitMQ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from delayboard.demo.node import PrivateNode
from tests.bench.figures import say, seconds
from topology.broker.address import parse_address
from topology.broker.consumer import getter
from topology.broker.management import Management
from topology.broker.properties import build_properties
from topology.broker.publisher import publisher
from topology.definitions import Queue
from topology.message import Publish

MESSAGES = 500


def measure(folder: Path) -> None:
    with PrivateNode(folder, "bench") as node:
        address = parse_address(node.amqp_url, node.management_url)
        with Management(address) as management:
            management.declare_queue(Queue("bench"))
        publish = Publish("", "bench", build_properties(delivery_mode=2), b"x" * 512)
        with publisher(address, "bench") as channel:
            sending = seconds(lambda: repeat(lambda: channel.publish(publish)))
        with getter(address, "bench") as source:
            getting = seconds(lambda: repeat(source.get))
    say("one confirmed publish against one get", sending / getting, f"{MESSAGES / sending:.0f}/s")


def repeat(act: Callable[[], object]) -> None:
    for _ in range(MESSAGES):
        act()
