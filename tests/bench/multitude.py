"""A vhost with 10,000 queues, 10,000 exchanges and 30,000 bindings: as values, and in a broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pika

from topology.definitions import Binding, BrokerObject, Definitions, Exchange, Queue
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.hold_queues import params as hold_queues_params
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.retry_pair import params as retry_pair_params
from topology.patterns.retry_pair.pattern import retry_pair

EACH = 10_000
BINDINGS = 30_000
PAIRS = 1_000
HOLDS = 500
# A queue for the messages that a test counts; who fills it does so before the broker is full.
COUNTED = "counted"
CONNECTIONS = 6


def multitude() -> Definitions:
    """A thousand retry pairs, delay levels, hold queues, and the rest what nobody recognizes."""
    objects = Definitions.of([*_known(), Queue(COUNTED)])
    names = [f"service-{n % 97}.work.{n}" for n in range(EACH - len(objects.queues))]
    sources = [f"events.{n}" for n in range(EACH - len(objects.exchanges))]
    rest: list[BrokerObject] = [*map(Queue, names)]
    rest += [Exchange(name, "topic" if n % 2 else "direct") for n, name in enumerate(sources)]
    for number in range(BINDINGS - len(objects.bindings)):
        queue, lap = names[number % len(names)], number // len(names)
        rest.append(Binding(sources[number * 7 % len(sources)], queue, f"order.{lap}.{number}"))
    return objects | Definitions.of(rest)


def _known() -> list[BrokerObject]:
    found: list[BrokerObject] = []
    for number in range(PAIRS):
        found += retry_pair.definitions(retry_pair_params.Params(f"work-{number}"))
    levels = delay_levels_params.Params()
    found += delay_levels.definitions(levels)
    found += delay_levels.route(levels, timedelta(minutes=1), COUNTED).declares
    holds = hold_queues_params.Params("events.0", ("out",))
    # Long ones: the queues of short ones would expire before all is declared.
    for hours in range(1, HOLDS + 1):
        found += hold_queues.route(holds, timedelta(hours=hours), "out").declares
    return found


def fill(amqp_url: str, objects: Definitions) -> None:
    """Declare it all over several connections, without waiting for each answer."""
    _declare(amqp_url, sorted(objects.exchanges, key=lambda x: x.name), _exchange)
    _declare(amqp_url, sorted(objects.queues, key=lambda q: q.name), _queue)
    _declare(amqp_url, sorted(objects.bindings, key=lambda b: b.identity), _bind)


def _declare(amqp_url: str, objects: Sequence[Any], act: Callable[[Any, Any], None]) -> None:
    def work(number: int) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(amqp_url))
        channel = connection.channel()
        for obj in objects[number::CONNECTIONS]:
            # Without a callback pika's inner channel asks for no answer; its outer one cannot.
            act(channel._impl, obj)
        # Answered when everything before it is done; a refusal closed the channel by then.
        channel.basic_qos(prefetch_count=1)
        connection.close()

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(work, range(CONNECTIONS)))


def _exchange(channel: Any, exchange: Exchange) -> None:
    channel.exchange_declare(
        exchange.name, exchange.type, durable=True, arguments=dict(exchange.arguments)
    )


def _queue(channel: Any, queue: Queue) -> None:
    channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))


def _bind(channel: Any, binding: Binding) -> None:
    act = channel.queue_bind if binding.destination_is_queue else channel.exchange_bind
    act(binding.destination, binding.source, binding.routing_key, arguments=dict(binding.arguments))
