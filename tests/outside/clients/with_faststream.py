"""FastStream: what fails is rejected, waits in a queue of its own, and comes back.

FastStream has no delays: the queues and their arguments are the application's, as RabbitMQ's
documentation has them. A delayed message has its own expiration in a queue without consumers.
The application publishes what it gives up into an error queue.
"""

from __future__ import annotations

import asyncio
import sys

from faststream import AckPolicy
from faststream.rabbit import ExchangeType, RabbitBroker, RabbitExchange, RabbitMessage, RabbitQueue
from faststream.rabbit.schemas.queue import ClassicQueueArgs

from tests.outside.clients.order import DELAYED, Order, now_ms, read_order, write


async def run(order: Order) -> None:
    name = order.prefix
    exchange = RabbitExchange(f"{name}.orders", type=ExchangeType.DIRECT, durable=True)
    failing = RabbitExchange(f"{name}.retry", type=ExchangeType.DIRECT, durable=True)
    back: ClassicQueueArgs = {
        "x-dead-letter-exchange": exchange.name,
        "x-dead-letter-routing-key": "order",
    }
    orders = RabbitQueue(
        f"{name}.orders",
        durable=True,
        routing_key="order",
        arguments={
            "x-dead-letter-exchange": failing.name,
            "x-dead-letter-routing-key": "order",
        },
    )
    retry = RabbitQueue(
        f"{name}.retry",
        durable=True,
        routing_key="order",
        arguments={**back, "x-message-ttl": order.wait_ms},
    )
    delay = RabbitQueue(f"{name}.delay", durable=True, arguments=back)
    errors = RabbitQueue(f"{name}.errors", durable=True)
    broker = RabbitBroker(order.url, logger=None)
    due: dict[str, int] = {}

    @broker.subscriber(orders, exchange, ack_policy=AckPolicy.REJECT_ON_ERROR)
    async def work(kind: str, message: RabbitMessage) -> None:
        deaths = message.headers.get("x-death", [])
        rejected = (one["count"] for one in deaths if one["reason"] == "rejected")
        attempt = sum(rejected) + 1
        write("attempt", message.message_id, attempt, due.get(message.message_id))
        if not order.fails(kind, attempt):
            write("done", message.message_id, attempt)
        elif attempt > order.rounds:
            await broker.publish(
                message.body,
                queue=errors,
                headers={**message.headers, "x-exception": "RuntimeError"},
                message_id=message.message_id,
                content_type=message.content_type,
                persist=True,
            )
            write("gave up", message.message_id, attempt)
        else:
            due[message.message_id] = now_ms() + order.wait_ms
            write("retrying", message.message_id, attempt, due[message.message_id])
            raise RuntimeError(f"{kind} order")

    await broker.connect()
    for declared in (exchange, failing):
        await broker.declare_exchange(declared)
    for queue in (delay, errors):
        await broker.declare_queue(queue)
    bound = await broker.declare_queue(retry)
    await bound.bind(failing.name, "order")
    if order.is_consuming:
        await broker.start()
    else:
        bound = await broker.declare_queue(orders)
        await bound.bind(exchange.name, "order")
    write("ready")
    for number, kind in enumerate(order.at_once):
        known = f"order-{number}"
        await broker.publish(kind, "order", exchange, message_id=known, persist=True)
        write("published", known)
    for number, wait in enumerate(order.delays_ms):
        known = f"delayed-{number}"
        due[known] = now_ms() + wait
        await broker.publish(
            DELAYED, queue=delay, message_id=known, expiration=wait / 1000, persist=True
        )
        write("published", known, due_at_ms=due[known])
    await asyncio.to_thread(sys.stdin.read)
    await broker.stop()


if __name__ == "__main__":
    asyncio.run(run(read_order()))
