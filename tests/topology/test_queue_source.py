"""What a queue source acknowledges, in whatever order the confirms come."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations
from typing import Any, cast

import pytest

from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.pipeline import CONFIRMED
from topology.message import Publish
from topology.transfer.move import QueueSource, Taken

PUBLISH = Publish("", "orders")


class FakeConsumer:
    """Deliveries with the tags 1 to 4; tests/real_broker/test_pipeline.py has a real one."""

    def __init__(self) -> None:
        self.acked: set[int] = set()

    def batch(self, **_: Any) -> list[Any]:
        return [Delivered(tag) for tag in range(1, 5)]

    def ack(self, tags: Iterable[int], *, through: int = 0) -> None:
        self.acked |= {*range(1, through + 1), *tags}


class Delivered:
    body = b"body"

    def __init__(self, tag: int) -> None:
        self.tag = tag


@pytest.mark.parametrize("order", list(permutations(range(1, 5))))
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_each_confirmed_message_is_acknowledged_and_no_other(
    order: tuple[int, ...], size: int
) -> None:
    consumer = FakeConsumer()
    source = QueueSource[None](
        cast(Consumer, consumer), lambda _: (PUBLISH, None), lambda *_: None, prefetch=10
    )
    assert len(source.take(4)) == 4
    for first in range(0, 4, size):
        source.settle([(Taken(tag, None), CONFIRMED) for tag in order[first : first + size]])
        assert consumer.acked == set(order[: first + size])
    assert source.unsettled == 0
