"""Celery with quorum queues: a countdown goes through the 28 levels of its delayed delivery.

A retry of `self.retry` is a new message with the same task id and the header `retries`. Delays are
whole seconds. What is given up is acked: Celery leaves no dead letters.
"""

from __future__ import annotations

import logging
import sys
from datetime import datetime
from threading import Thread
from typing import Any

from celery import Celery, signals
from celery.worker import state
from kombu.transport.native_delayed_delivery import (
    bind_queue_to_native_delayed_delivery_exchange,
    declare_native_delayed_delivery_exchanges_and_queues,
)

from tests.outside.clients.order import DELAYED, Order, read_order, write


def application(order: Order) -> Celery:
    app = Celery(order.prefix, broker=order.url)
    app.conf.update(
        task_default_queue=f"{order.prefix}.orders",
        task_default_exchange=f"{order.prefix}.orders",
        task_default_routing_key=f"{order.prefix}.orders",
        task_default_queue_type="quorum",
        task_default_exchange_type="topic",
        worker_detect_quorum_queues=True,
        worker_redirect_stdouts=False,
        broker_native_delayed_delivery_queue_type="quorum",
    )
    return app


def declare(app: Celery) -> None:
    """What a worker declares when it starts."""
    with app.connection_for_write() as connection:
        declare_native_delayed_delivery_exchanges_and_queues(connection, "quorum")
        for queue in app.amqp.queues.values():
            queue(connection.default_channel).declare()
            bind_queue_to_native_delayed_delivery_exchange(connection, queue)


def main() -> None:
    order = read_order()
    logging.disable()
    app = application(order)
    # By task and retry: the worker may publish the first retry before the publisher notes the task.
    due: dict[tuple[str, int], int | None] = {}

    @signals.before_task_publish.connect(weak=False)
    def remember(headers: dict[str, Any], **_: Any) -> None:
        eta = headers["eta"]
        at = datetime.fromisoformat(eta).timestamp() if eta else None
        due[headers["id"], headers["retries"]] = None if at is None else round(at * 1000)

    @signals.after_task_publish.connect(weak=False)
    def note(headers: dict[str, Any], **_: Any) -> None:
        event = "retrying" if headers["retries"] else "published"
        key = (headers["id"], headers["retries"])
        write(event, *key, due[key])

    @app.task(name="work", bind=True, max_retries=order.rounds)
    def work(self: Any, kind: str) -> None:
        attempt = self.request.retries + 1
        write("attempt", self.request.id, attempt, due.get((self.request.id, attempt - 1)))
        if not order.fails(kind, attempt):
            write("done", self.request.id, attempt)
            return
        if attempt > order.rounds:
            write("gave up", self.request.id, attempt)
        raise self.retry(countdown=order.wait_ms / 1000, exc=RuntimeError(f"{kind} order"))

    def publish() -> None:
        write("ready")
        for kind in order.at_once:
            work.delay(kind)
        for delay in order.delays_ms:
            work.apply_async((DELAYED,), countdown=delay / 1000)
        sys.stdin.read()
        state.should_stop = 0

    if order.is_consuming:
        signals.worker_ready.connect(lambda **_: Thread(target=publish).start(), weak=False)
        app.Worker(pool="solo", loglevel="CRITICAL", quiet=True).start()
    else:
        declare(app)
        publish()


if __name__ == "__main__":
    main()
