"""What tests of the firehose share: a foreign publisher of hold queues, and a recorder's thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pika
from django.db import connection as database

from analytics.events import MessageEvent
from analytics.recorder.record import record
from analytics.recorder.record_firehose import record_firehose
from delayboard.dead_letters.queues.failures import note_failures
from delayboard.demo.node import PrivateNode
from tests.analytics.builders import logged
from tests.brokers import call_api
from tests.builders import applied_topology, eventually
from topology.broker.errors import BrokerError
from topology.models import Broker, Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.hold_queues import params as hold_queues_params
from topology.patterns.hold_queues.pattern import hold_queues

DELAY_MS = 1500
SECONDS = 30.0


def is_tracing(node: PrivateNode, vhost: str) -> bool:
    return bool(call_api(node, "GET", f"vhosts/{vhost}")["tracing"])


def holds(broker: Broker, exchange: str = "", delay_ms: int = DELAY_MS) -> Topology:
    params = hold_queues_params.Params(exchange, ("orders",), (timedelta(milliseconds=delay_ms),))
    return applied_topology(create_topology(None, broker, hold_queues.KIND, params))


@contextmanager
def foreign(amqp_url: str) -> Iterator[Any]:
    """A channel of a program that knows nothing of Delayboard."""
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


def hold(channel: Any, exchange: str, message_id: str | None, delay_ms: int = DELAY_MS) -> str:
    """Delay a message as the article shows; the hold queue's name."""
    name = f"delay.{delay_ms}.{exchange}.orders"
    arguments = {
        "x-queue-type": "classic",
        "x-message-ttl": delay_ms,
        "x-dead-letter-exchange": exchange,
        "x-dead-letter-routing-key": "orders",
        "x-expires": max(2 * delay_ms, delay_ms + 60_000),
    }
    channel.queue_declare(name, durable=True, arguments=arguments)
    headers = {"step": 3, "tags": ["a", {"b": True}]}
    properties = pika.BasicProperties(message_id=message_id, delivery_mode=2, headers=headers)
    channel.basic_publish("", name, b"hello", properties, mandatory=True)
    return name


@contextmanager
def recording(broker: Broker, topology: Topology | None = None) -> Iterator[dict[str, object]]:
    """Record in a thread for the length of the block, as the worker does; its last counters.

    The firehose of the broker, or the tap of a topology.
    """
    stop, counters, failed = Event(), dict[str, object](), list[BaseException]()

    def beat(reported: Mapping[str, object]) -> None:
        counters.update(reported)

    def run() -> None:
        try:
            while not stop.is_set():
                try:
                    if topology is None:
                        record_firehose(broker.pk, note_failures, stop=stop, beat=beat)
                    else:
                        record(topology.pk, stop=stop, beat=beat)
                    return
                except BrokerError:
                    stop.wait(0.2)
        except BaseException as error:
            failed.append(error)
        finally:
            database.close()

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        eventually(lambda: counters or failed, "the recorder is at work")
        yield counters
    finally:
        stop.set()
        thread.join(SECONDS)
    assert not failed, failed


def seen(log: Path, **wanted: object) -> list[MessageEvent]:
    events = logged(log)
    return [e for e in events if all(getattr(e, name) == value for name, value in wanted.items())]
