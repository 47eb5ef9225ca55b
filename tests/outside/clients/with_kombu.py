"""kombu without Celery: a queue for each delay, and one in which failed messages wait.

A delayed message goes to a direct exchange with its delay as the key. A failed one is rejected;
the fanout exchange of its queue passes it to the retry queue, which puts it back into the queue by
the default exchange. What is given up is published into the failed queue.
"""

from __future__ import annotations

import sys
from threading import Event, Thread
from typing import Any

from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.mixins import ConsumerProducerMixin

from tests.outside.clients.order import DELAYED, Order, now_ms, read_order, write


class Worker(ConsumerProducerMixin):
    def __init__(self, connection: Connection, order: Order) -> None:
        name = order.prefix
        self.connection = connection
        self.order = order
        self.due: dict[str, int] = {}
        self.ready = Event()
        self.topic = Exchange(f"{name}.orders", "topic")
        self.delay = Exchange(f"{name}.delay", "direct")
        retry = Exchange(f"{name}.retry", "fanout")
        into_retry = {"x-dead-letter-exchange": retry.name}
        self.orders = Queue(
            f"{name}.orders", self.topic, routing_key="order.#", queue_arguments=into_retry
        )
        back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": self.orders.name}
        self.failed = Queue(f"{name}.failed", Exchange(f"{name}.failed", "direct"), "failed")
        self.queues = [
            self.orders,
            Queue(f"{name}.retry", retry, queue_arguments=back, message_ttl=order.wait_ms / 1000),
            self.failed,
            *(
                Queue(
                    f"{name}.delay.{delay}",
                    self.delay,
                    routing_key=str(delay),
                    queue_arguments={
                        "x-dead-letter-exchange": self.topic.name,
                        "x-dead-letter-routing-key": "order.delayed",
                    },
                    message_ttl=delay / 1000,
                )
                for delay in sorted(set(order.delays_ms))
            ),
        ]

    def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
        return [consumer([self.orders], callbacks=[self.work])]

    def on_consume_ready(self, *_: Any, **__: Any) -> None:
        self.ready.set()

    def work(self, kind: str, message: Any) -> None:
        deaths = message.headers.get("x-death", [])
        attempt = sum(one["count"] for one in deaths if one["reason"] == "rejected") + 1
        name = message.properties["message_id"]
        write("attempt", name, attempt, self.due.get(name))
        if not self.order.fails(kind, attempt):
            message.ack()
            write("done", name, attempt)
        elif attempt > self.order.rounds:
            self.producer.publish(
                kind,
                exchange=self.failed.exchange,
                routing_key="failed",
                headers=message.headers,
                message_id=name,
                retry=True,
            )
            message.ack()
            write("gave up", name, attempt)
        else:
            self.due[name] = now_ms() + self.order.wait_ms
            write("retrying", name, attempt, self.due[name])
            message.reject()


def main() -> None:
    order = read_order()
    with Connection(order.url) as connection, Connection(order.url) as publishing:
        worker = Worker(connection, order)
        for queue in worker.queues:
            queue(publishing.default_channel).declare()
        thread = Thread(target=worker.run)
        if order.is_consuming:
            thread.start()
            worker.ready.wait()
        write("ready")
        producer = publishing.Producer()
        for number, kind in enumerate(order.at_once):
            name = f"order-{number}"
            producer.publish(kind, exchange=worker.topic, routing_key="order.new", message_id=name)
            write("published", name)
        for number, delay in enumerate(order.delays_ms):
            name = f"delayed-{number}"
            worker.due[name] = now_ms() + delay
            producer.publish(
                DELAYED, exchange=worker.delay, routing_key=str(delay), message_id=name
            )
            write("published", name, due_at_ms=worker.due[name])
        sys.stdin.read()
        worker.should_stop = True
        if order.is_consuming:
            thread.join()


if __name__ == "__main__":
    main()
