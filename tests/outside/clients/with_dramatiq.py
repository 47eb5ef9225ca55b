"""Dramatiq: a delayed message is published into `.DQ`, where the worker holds it until its `eta`.

When it is due, the worker publishes it into the queue itself. A retry goes the same way. What is
given up is rejected, and RabbitMQ dead-letters it into `.XQ`.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import CurrentMessage, Middleware, Retries
from dramatiq.worker import Worker

from tests.outside.clients.order import DELAYED, read_order, write


class Log(Middleware):
    """Writes what dramatiq publishes and gives up.

    The main thread publishes what is new, and the worker's thread may process it before that is
    confirmed; a retry is published by the worker, and so is what it moves when that is due.
    """

    def __init__(self) -> None:
        self.due: dict[str, int] = {}

    def before_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
        if delay is not None:
            self.due[message.message_id] = message.options["eta"]

    def after_enqueue(self, broker: Any, message: Any, delay: int | None) -> None:
        is_new = threading.current_thread() is threading.main_thread()
        if not is_new and delay is None:
            return  # It was due.
        due = message.options["eta"] if delay is not None else None
        event = "published" if is_new else "retrying"
        write(event, message.message_id, message.options.get("retries", 0), due)

    def after_nack(self, broker: Any, message: Any) -> None:
        write("gave up", message.message_id, message.options["retries"])


def main() -> None:
    order = read_order()
    logging.disable()
    log = Log()
    retries = Retries(
        max_retries=order.rounds, min_backoff=order.wait_ms, max_backoff=order.wait_ms
    )
    broker = RabbitmqBroker(
        url=order.url, middleware=[retries, CurrentMessage(), log], confirm_delivery=True
    )
    dramatiq.set_broker(broker)

    @dramatiq.actor(queue_name=f"{order.prefix}.orders")
    def work(kind: str) -> None:
        message = CurrentMessage.get_current_message()
        assert message is not None
        attempt = message.options.get("retries", 0) + 1
        write("attempt", message.message_id, attempt, log.due.get(message.message_id))
        if order.fails(kind, attempt):
            raise RuntimeError(f"{kind} order")
        write("done", message.message_id, attempt)

    worker = Worker(broker, worker_threads=1, worker_timeout=100)
    if order.is_consuming:
        worker.start()
    broker.declare_queue(work.queue_name, ensure=True)
    write("ready")
    for kind in order.at_once:
        work.send(kind)
    for delay in order.delays_ms:
        work.send_with_options(args=(DELAYED,), delay=delay)
    sys.stdin.read()
    if order.is_consuming:
        worker.stop()


if __name__ == "__main__":
    main()
