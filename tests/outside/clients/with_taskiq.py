"""taskiq-aio-pika: a delayed message is published into one delay queue with its own expiration.

A retry of `SmartRetryMiddleware` is a new message with the same task id and the label `_retries`.
What is given up is acked: nothing comes into `dead_letter`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

from taskiq import Context, SmartRetryMiddleware, TaskiqDepends, TaskiqMessage, TaskiqMiddleware
from taskiq.api import run_receiver_task
from taskiq_aio_pika import AioPikaBroker, Exchange, Queue

from tests.outside.clients.order import DELAYED, Order, now_ms, read_order, write


class Log(TaskiqMiddleware):
    """Writes what taskiq publishes; it is due after its delay from before it is published."""

    def __init__(self) -> None:
        super().__init__()
        self.due: dict[str, int | None] = {}

    def pre_send(self, message: TaskiqMessage) -> TaskiqMessage:
        delay = message.labels.get("delay")
        due = None if delay is None else now_ms() + round(float(delay) * 1000)
        self.due[message.task_id] = due
        return message

    def post_send(self, message: TaskiqMessage) -> None:
        retries = int(message.labels.get("_retries", 0))
        due = self.due[message.task_id]
        write("retrying" if retries else "published", message.task_id, retries, due)


async def run(order: Order) -> None:
    log = Log()
    retries = SmartRetryMiddleware(
        default_retry_count=order.rounds + 1,
        default_retry_label=True,
        default_delay=order.wait_ms / 1000,
    )
    broker = AioPikaBroker(
        order.url,
        exchange=Exchange(name=order.prefix),
        task_queues=[Queue(name=f"{order.prefix}.orders")],
        delay_queue=Queue(name=f"{order.prefix}.delay"),
        dead_letter_queue=Queue(name=f"{order.prefix}.dead_letter"),
    ).with_middlewares(retries, log)

    @broker.task(task_name=f"{order.prefix}.work")
    async def work(kind: str, context: Context = TaskiqDepends()) -> None:  # noqa: B008
        message = context.message
        attempt = int(message.labels.get("_retries", 0)) + 1
        write("attempt", message.task_id, attempt, log.due.get(message.task_id))
        if order.fails(kind, attempt):
            if attempt > order.rounds:
                write("gave up", message.task_id, attempt)
            raise RuntimeError(f"{kind} order")
        write("done", message.task_id, attempt)

    broker.is_worker_process = order.is_consuming
    await broker.startup()
    worker: asyncio.Task[Any] | None = None
    if order.is_consuming:
        worker = asyncio.create_task(run_receiver_task(broker, run_startup=False))
    write("ready")
    for kind in order.at_once:
        await work.kiq(kind)
    for delay in order.delays_ms:
        await work.kicker().with_labels(delay=delay / 1000).kiq(DELAYED)
    await asyncio.to_thread(sys.stdin.read)
    if worker is not None:
        worker.cancel()
    await broker.shutdown()


if __name__ == "__main__":
    logging.disable()
    asyncio.run(run(read_order()))
