"""Confirmed publishes, one at a time and in a pipeline, on this machine's RabbitMQ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from delayboard.demo.node import PrivateNode
from tests.bench.figures import say, seconds
from tests.publishing import publisher
from topology.broker.address import Address, parse_address
from topology.broker.amqp.pipeline import Answer, Publisher, pipeline
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Queue
from topology.message import Publish
from topology.transfer.move import Step, move

MESSAGES = 500
MANY = 50_000
WINDOW = 1000
PUBLISH = Publish("", "bench", build_properties(delivery_mode=2), b"x" * 512)


class Same:
    """The same message so many times."""

    def __init__(self, number: int) -> None:
        self._left = number

    def take(self, room: int) -> Sequence[Step[None]]:
        number = min(room, self._left)
        self._left -= number
        return [Step(None, PUBLISH)] * number

    def settle(self, answers: Sequence[tuple[None, Answer]]) -> None:
        assert all(answer.kind == "confirmed" for _, answer in answers)

    @property
    def is_exhausted(self) -> bool:
        return not self._left


def measure(folder: Path) -> None:
    with PrivateNode(folder, "bench") as node:
        address = parse_address(node.amqp_url, node.management_url)
        with Management(address) as management:
            management.declare_queue(Queue("bench"))
        with publisher(address, "bench") as channel:
            alone = MESSAGES / seconds(lambda: one_by_one(channel))
        many = MANY / seconds(lambda: pipelined(address))
    note = f"{many:.0f}/s against {alone:.0f}/s"
    say("publishes in a pipeline, to one at a time", many / alone, note)


def one_by_one(channel: Publisher) -> None:
    for _ in range(MESSAGES):
        channel.publish(PUBLISH)


def pipelined(address: Address) -> None:
    with pipeline(address, "bench") as channel:
        move(Same(MANY), channel, window=WINDOW, is_stopping=lambda: False)
