"""Runs many cases at once in one vhost: declares, publishes, consumes as each queue's case says."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pika

from delayboard.demo.node import PrivateNode
from tests.brokers import Vhost, call_api
from tests.builders import address_of
from tests.real_broker.proof.case import Case
from topology.broker.amqp.connection import open_connection
from topology.broker.amqp.pipeline import publisher
from topology.broker.properties.read import build_properties, read_properties
from topology.definitions import Binding, Definitions, Exchange
from topology.message import Publish
from topology.routing.context import Consumer
from topology.routing.cycle import published_deaths
from topology.structure.copies import Copy

# Definitions that one request brings: a broker needs seconds for some hundred quorum queues.
CASES_AT_ONCE = 25
QUIET_SECONDS = 0.02


@dataclass
class Seen:
    """When each message was published and taken for good (monotonic seconds), by queue.

    `deliveries` counts those too that were not taken for good. `copies` are how they came, by
    queue and message.
    """

    published: dict[str, float] = field(default_factory=dict)
    returned: set[str] = field(default_factory=set)
    taken: dict[str, list[tuple[str, float]]] = field(default_factory=lambda: defaultdict(list))
    deliveries: Counter[str] = field(default_factory=Counter)
    copies: dict[tuple[str, str], list[Copy]] = field(default_factory=lambda: defaultdict(list))
    last_at: float = 0.0


def declare(node: PrivateNode, vhost: Vhost, cases: Sequence[Case]) -> None:
    """Import the definitions of all cases into the vhost."""
    for start in range(0, len(cases), CASES_AT_ONCE):
        together = Definitions()
        for case in cases[start : start + CASES_AT_ONCE]:
            together |= case.definitions
        call_api(node, "POST", f"definitions/{vhost.name}", _importable(together))


def _importable(definitions: Definitions) -> dict[str, Any]:
    return {
        "exchanges": [_exchange(exchange) for exchange in definitions.exchanges],
        "queues": [
            {
                "name": queue.name,
                "durable": True,
                "auto_delete": False,
                "arguments": dict(queue.arguments),
            }
            for queue in definitions.queues
        ],
        "bindings": [_binding(binding) for binding in definitions.bindings],
    }


def _exchange(exchange: Exchange) -> dict[str, Any]:
    return {
        "name": exchange.name,
        "type": exchange.type,
        "durable": True,
        "auto_delete": False,
        "internal": exchange.internal,
        "arguments": dict(exchange.arguments),
    }


def _binding(binding: Binding) -> dict[str, Any]:
    return {
        "source": binding.source,
        "destination": binding.destination,
        "destination_type": "queue" if binding.destination_is_queue else "exchange",
        "routing_key": binding.routing_key,
        "arguments": dict(binding.arguments),
    }


class Players(threading.Thread):
    """All consumers of all cases, on one connection: they ack, reject, put back, or crash.

    A crash is a channel that closes without an answer; one that crashes takes one message at a
    time, so that no other message's delivery fails with it.
    """

    def __init__(self, vhost: Vhost, consumers: Mapping[str, Consumer], seen: Seen) -> None:
        super().__init__(name="players", daemon=True)
        self._vhost = vhost
        self._consumers = consumers
        self._seen = seen
        self._come: deque[tuple[Any, str, Any, Any]] = deque()
        self._stopping = threading.Event()
        self._ready = threading.Event()
        self.error: BaseException | None = None

    def __enter__(self) -> Players:
        self.start()
        assert self._ready.wait(120), "the consumers did not start"
        if self.error:
            raise self.error
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join(60)
        if self.error:
            raise self.error

    def run(self) -> None:
        try:
            with open_connection(address_of(self._vhost), "players") as connection:
                shared = connection.channel()
                for queue, consumer in self._consumers.items():
                    if consumer.does == "crashes":
                        self._alone(connection, queue)
                    else:
                        self._consume(shared, queue)
                self._ready.set()
                while not self._stopping.is_set():
                    connection.process_data_events(QUIET_SECONDS)
                    while self._come:
                        self._answer(connection, *self._come.popleft())
        except BaseException as error:
            self.error = error
            self._ready.set()

    def _alone(self, connection: pika.BlockingConnection, queue: str) -> None:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=1)
        self._consume(channel, queue)

    def _consume(self, channel: Any, queue: str) -> None:
        def come(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            self._seen.last_at = time.monotonic()
            self._seen.deliveries[queue] += 1
            if self._does(queue, properties) == "acks":
                name = body.decode()
                self._seen.taken[queue].append((name, self._seen.last_at))
                headers = read_properties(properties.raw).headers
                copy = Copy(method.exchange, method.routing_key, headers)
                self._seen.copies[queue, name].append(copy)
            self._come.append((channel, queue, method, properties))

        channel.basic_consume(queue, come)

    def _does(self, queue: str, properties: Any) -> str:
        headers = read_properties(properties.raw).headers
        return self._consumers[queue].action(queue, published_deaths(headers))

    def _answer(
        self,
        connection: pika.BlockingConnection,
        channel: Any,
        queue: str,
        method: Any,
        properties: Any,
    ) -> None:
        match self._does(queue, properties):
            case "acks":
                channel.basic_ack(method.delivery_tag)
            case "rejects":
                channel.basic_reject(method.delivery_tag, requeue=False)
            case "requeues":
                channel.basic_nack(method.delivery_tag, requeue=True)
            case "crashes":
                channel.close()
                self._alone(connection, queue)


def publish(vhost: Vhost, cases: Mapping[str, Case], seen: Seen) -> None:
    """Publish each case's message, whose body is the case's name."""
    with publisher(address_of(vhost), "cases") as channel:
        for name, case in cases.items():
            properties = build_properties(case.headers, expiration=case.expiration, delivery_mode=2)
            seen.published[name] = time.monotonic()
            publish = Publish(case.exchange, case.routing_key, properties, name.encode())
            if (answer := channel.publish(publish)).kind == "returned":
                seen.returned.add(name)
            else:
                answer.require()
