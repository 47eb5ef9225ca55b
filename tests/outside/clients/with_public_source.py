"""Services to the letter of public sources, for libraries that are not run here.

Each declares, publishes and fails as its source does, by pika; a class names the files. `--library`
chooses one. MassTransit and Wolverine keep no delay in a queue of RabbitMQ: the scheduler of the
first needs the delayed-message plugin, or keeps messages in a database as the second does. Here
they fail a message into their error queues.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

import pika

from tests.outside.clients.order import DELAYED, Order, now_ms, read_order, write

TTL, DLX, KEY = "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key"


class Service:
    """By default it rejects what fails, and counts by x-death."""

    queue: str
    sent_to: tuple[str, str]

    def __init__(self, channel: Any, order: Order) -> None:
        self.channel, self.order, self.name = channel, order, order.prefix
        self.due: dict[str, int] = {}
        self.failures = 0

    def declare(self) -> None:
        """Declare what is there before the first message."""
        raise NotImplementedError

    def delay(self, kind: str, ms: int, properties: pika.BasicProperties) -> None:
        """Publish a message that shall wait."""
        raise NotImplementedError

    def count(self, headers: Mapping[str, Any], body: bytes) -> int:
        """Return how often this message failed before."""
        deaths = [one for one in headers.get("x-death", []) if one["queue"] == self.queue]
        return sum(one["count"] for one in deaths if one["reason"] == "rejected")

    def retry(self, kind: str, failures: int, tag: int, properties: pika.BasicProperties) -> None:
        self.channel.basic_reject(tag, requeue=False)

    def give_up(self, kind: str, tag: int, properties: pika.BasicProperties) -> None:
        self.channel.basic_ack(tag)

    def exchange(self, name: str, type_: str) -> None:
        self.channel.exchange_declare(name, type_, durable=True)

    def declare_queue(self, name: str, **arguments: Any) -> None:
        stated = {"ttl": TTL, "dlx": DLX, "key": KEY, "expires": "x-expires"}
        self.channel.queue_declare(
            name, durable=True, arguments={stated[word]: value for word, value in arguments.items()}
        )

    def publish(self, exchange: str, key: str, kind: str, properties: pika.BasicProperties) -> None:
        body = self.encode(kind, self.failures)
        self.channel.basic_publish(exchange, key, body, properties, mandatory=True)

    def encode(self, kind: str, failures: int) -> bytes:
        return kind.encode()

    def decode(self, body: bytes) -> str:
        return body.decode()

    def run(self) -> None:
        self.declare()
        if self.order.is_consuming:
            self.channel.basic_qos(prefetch_count=10)
            self.channel.basic_consume(self.queue, self.work)
        write("ready")
        for number, kind in enumerate(self.order.at_once):
            self.publish(*self.sent_to, kind, self.properties(f"order-{number}"))
            write("published", f"order-{number}")
        for number, ms in enumerate(self.order.delays_ms):
            name = f"delayed-{number}"
            self.due[name] = now_ms() + ms
            self.delay(DELAYED, ms, self.properties(name))
            write("published", name, 0, self.due[name])
        if self.order.is_consuming:
            self.channel.start_consuming()
        sys.stdin.read()

    def properties(self, name: str, failures: int = 0) -> pika.BasicProperties:
        return pika.BasicProperties(delivery_mode=2, message_id=name, headers={})

    def work(
        self, channel: Any, method: Any, properties: pika.BasicProperties, body: bytes
    ) -> None:
        kind, name = self.decode(body), str(properties.message_id or properties.correlation_id)
        failures = self.count(properties.headers or {}, body)
        write("attempt", name, failures + 1, self.due.get(name))
        if not self.order.fails(kind, failures + 1):
            channel.basic_ack(method.delivery_tag)
            write("done", name, failures + 1)
        elif failures >= self.order.rounds:
            self.give_up(kind, method.delivery_tag, properties)
            write("gave up", name, failures + 1)
        else:
            self.due[name] = now_ms() + self.order.wait_ms
            self.failures = failures + 1
            self.retry(kind, failures + 1, method.delivery_tag, properties)
            self.failures = 0
            write("retrying", name, failures + 1, self.due[name])


class SpringAmqp(Service):
    """Spring AMQP, reference "Resilience": a listener rejects (AmqpRejectAndDontRequeueException),
    and the dead letters wait in a queue with a TTL."""

    def declare(self) -> None:
        self.queue, self.sent_to = f"{self.name}.in", (self.name, "order.new")
        self.exchange(self.name, "topic")
        self.exchange(f"{self.name}.dlx", "direct")
        self.declare_queue(self.queue, dlx=f"{self.name}.dlx", key="retry")
        wait = {"ttl": self.order.wait_ms, "dlx": self.name, "key": "order.retry"}
        self.declare_queue(f"{self.name}.wait", **wait)
        self.declare_queue(f"{self.name}.parking")
        self.channel.queue_bind(self.queue, self.name, "order.#")
        self.channel.queue_bind(f"{self.name}.wait", f"{self.name}.dlx", "retry")
        self.channel.queue_bind(f"{self.name}.parking", f"{self.name}.dlx", "park")

    def give_up(self, kind: str, tag: int, properties: pika.BasicProperties) -> None:
        self.publish(f"{self.name}.dlx", "park", kind, properties)
        self.channel.basic_ack(tag)


class SpringCloudStream(Service):
    """spring-cloud-stream-binder-rabbit, docs "Dead-Letter Queue Processing": autoBindDlq, dlqTtl
    and an empty dlqDeadLetterExchange; ImmediateAcknowledgeAmqpException gives up."""

    def declare(self) -> None:
        self.queue, self.sent_to = f"{self.name}.billing", (self.name, self.name)
        self.exchange(self.name, "topic")
        self.exchange("DLX", "direct")
        self.declare_queue(self.queue, dlx="DLX", key=self.queue)
        self.declare_queue(f"{self.queue}.dlq", ttl=self.order.wait_ms, dlx="", key=self.queue)
        self.channel.queue_bind(self.queue, self.name, "#")
        self.channel.queue_bind(f"{self.queue}.dlq", "DLX", self.queue)


class Symfony(Service):
    """symfony/amqp-messenger, Connection.php, AmqpStamp.php and, by default, PhpSerializer.php. A
    retry has the headers of the failed message, and the stamps in the body."""

    SPACE: ClassVar = "Symfony\\Component\\Messenger\\"
    queue = "messages"
    sent_to = ("messages", "")

    def declare(self) -> None:
        self.exchange("messages", "fanout")
        self.declare_queue("messages")
        self.channel.queue_bind("messages", "messages", "")
        self.exchange("delays", "direct")

    def wait(self, name: str, ms: int, dlx: str, key: str) -> None:
        self.declare_queue(name, ttl=ms, expires=ms + 10_000, dlx=dlx, key=key)
        self.channel.queue_bind(name, "delays", name)

    def delay(self, kind: str, ms: int, properties: pika.BasicProperties) -> None:
        name = f"delay_messages__{ms}_delay"
        self.wait(name, ms, "messages", "")
        self.publish("delays", name, kind, properties)

    def encode(self, kind: str, failures: int) -> bytes:
        """What addslashes(serialize(envelope)) returns."""
        stamp, envelope = f"{self.SPACE}Stamp\\RedeliveryStamp", f"{self.SPACE}Envelope"
        count = _text(f"\0{stamp}\0retryCount")
        each = "".join(
            f'i:{n};O:{len(stamp)}:"{stamp}":1:{{{count}i:{n + 1};}}' for n in range(failures)
        )
        stamps = f"a:1:{{{_text(stamp)}a:{failures}:{{{each}}}}}" if failures else "a:0:{}"
        message = f'O:9:"App\\Order":1:{{{_text("kind")}{_text(kind)}}}'
        whole = (
            f'O:{len(envelope)}:"{envelope}":2:{{{_text(f"{chr(0)}{envelope}{chr(0)}stamps")}'
            f"{stamps}{_text(f'{chr(0)}{envelope}{chr(0)}message')}{message}}}"
        )
        for character in "\\\"'":
            whole = whole.replace(character, f"\\{character}")
        return whole.replace("\0", "\\0").encode()

    def decode(self, body: bytes) -> str:
        return str(re.findall(r'kind\\";s:\d+:\\"(\w+)\\"', body.decode())[0])

    def count(self, headers: Mapping[str, Any], body: bytes) -> int:
        counts = re.findall(r'retryCount\\";i:(\d+)', body.decode())
        return int(counts[-1]) if counts else 0

    def retry(self, kind: str, failures: int, tag: int, properties: pika.BasicProperties) -> None:
        name = f"delay_messages_messages_{self.order.wait_ms}_retry"
        self.wait(name, self.order.wait_ms, "", "messages")
        self.publish("delays", name, kind, properties)
        self.channel.basic_ack(tag)


class SymfonyJson(Symfony):
    """The same with Symfony's serializer, Serializer.php: the stamps are headers in JSON."""

    STAMP: ClassVar = "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\RedeliveryStamp"
    encode, decode = Service.encode, Service.decode

    def count(self, headers: Mapping[str, Any], body: bytes) -> int:
        stamps = json.loads(headers.get(self.STAMP, "[]"))
        return stamps[-1]["retryCount"] if stamps else 0

    def retry(self, kind: str, failures: int, tag: int, properties: pika.BasicProperties) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        stamps = [{"retryCount": n, "redeliveredAt": at} for n in range(1, failures + 1)]
        properties.headers = {**(properties.headers or {}), self.STAMP: json.dumps(stamps)}
        super().retry(kind, failures, tag, properties)


class Laravel(Service):
    """vyuldashev/laravel-queue-rabbitmq, RabbitMQQueue.php: laterRaw, also for what is released."""

    queue = "default"
    sent_to = ("", "default")

    def declare(self) -> None:
        self.declare_queue("default")

    def properties(self, name: str, failures: int = 0) -> pika.BasicProperties:
        return pika.BasicProperties(
            "application/json",
            delivery_mode=2,
            correlation_id=name,
            headers={"laravel": {"attempts": failures}},
        )

    def delay(self, kind: str, ms: int, properties: pika.BasicProperties) -> None:
        name = f"default.delay.{ms}"
        self.declare_queue(name, dlx="", key="default", ttl=ms, expires=2 * ms)
        self.publish("", name, kind, properties)

    def count(self, headers: Mapping[str, Any], body: bytes) -> int:
        return int(headers["laravel"]["attempts"])

    def retry(self, kind: str, failures: int, tag: int, properties: pika.BasicProperties) -> None:
        again = self.properties(str(properties.correlation_id), failures)
        self.delay(kind, self.order.wait_ms, again)
        self.channel.basic_ack(tag)


class Sneakers(Service):
    """jondot/sneakers, handlers/maxretry.rb: retry and requeue exchanges of a worker's queue."""

    def declare(self) -> None:
        self.queue = f"{self.name}-work"
        self.sent_to = ("sneakers", self.queue)
        retry, requeue, error = (f"{self.queue}-{w}" for w in ("retry", "retry-requeue", "error"))
        self.exchange("sneakers", "direct")
        for name in (retry, requeue, error):
            self.exchange(name, "topic")
        self.declare_queue(self.queue, dlx=retry)
        self.declare_queue(retry, dlx=requeue, ttl=self.order.wait_ms)
        self.declare_queue(error)
        self.channel.queue_bind(self.queue, "sneakers", self.queue)
        for name, exchange in ((retry, retry), (error, error), (self.queue, requeue)):
            self.channel.queue_bind(name, exchange, "#")

    def give_up(self, kind: str, tag: int, properties: pika.BasicProperties) -> None:
        self.publish(f"{self.queue}-error", self.queue, kind, pika.BasicProperties())
        self.channel.basic_ack(tag)


class EasyNetQ(Service):
    """EasyNetQ, DeadLetterExchangeAndMessageTtlScheduler.cs: a topic exchange and a queue for each
    delay. It retries nothing; what fails goes into its error queue."""

    queue = "Orders.Sent_billing"
    sent_to = ("Orders.Sent", "")

    def declare(self) -> None:
        self.exchange("Orders.Sent", "topic")
        self.declare_queue(self.queue)
        self.channel.queue_bind(self.queue, "Orders.Sent", "#")
        self.declare_queue("EasyNetQ_Default_Error_Queue")

    def delay(self, kind: str, ms: int, properties: pika.BasicProperties) -> None:
        name = f"Orders.Sent_00_00_00_{ms // 1000:02}"
        self.exchange(name, "topic")
        self.declare_queue(name, ttl=ms, dlx="Orders.Sent")
        self.channel.queue_bind(name, name, "")
        self.publish(name, "", kind, properties)


class NServiceBus(Service):
    """Particular/NServiceBus.RabbitMQ, DelayInfrastructure.cs (from 7 on), conventional routing. A
    delayed retry has the id of the message and the header NServiceBus.Retries."""

    RETRIES: ClassVar = "NServiceBus.Retries"
    LEVELS: ClassVar = range(27, -1, -1)
    DELIVERY: ClassVar = "nsb.v2.delay-delivery"

    def level(self, number: int) -> str:
        return f"nsb.v2.delay-level-{number:02}" if number >= 0 else self.DELIVERY

    def declare(self) -> None:
        self.queue = f"{self.name}.sales"
        self.sent_to = (self.queue, "")
        for number in (*self.LEVELS, -1):
            self.exchange(self.level(number), "topic")
        for number in self.LEVELS:
            name, before = self.level(number), "*." * (27 - number)
            arguments = {
                "x-queue-type": "quorum",
                "x-dead-letter-strategy": "at-least-once",
                "x-overflow": "reject-publish",
                TTL: 2**number * 1000,
                DLX: self.level(number - 1),
            }
            self.channel.queue_declare(name, durable=True, arguments=arguments)
            self.channel.queue_bind(name, name, f"{before}1.#")
            self.channel.exchange_bind(self.level(number - 1), name, f"{before}0.#")
        self.exchange(self.queue, "fanout")
        self.channel.queue_declare(self.queue, durable=True, arguments={"x-queue-type": "quorum"})
        self.channel.queue_bind(self.queue, self.queue, "")
        self.channel.exchange_bind(self.queue, self.DELIVERY, f"#.{self.queue}")
        self.declare_queue("error")

    def delay(self, kind: str, ms: int, properties: pika.BasicProperties) -> None:
        seconds = ms // 1000
        bits = ".".join(f"{seconds:028b}")
        name = "NServiceBus.Transport.RabbitMQ.DelayInSeconds"
        properties.headers = {**(properties.headers or {}), name: seconds}
        first = self.level(seconds.bit_length() - 1)
        self.publish(first, f"{bits}.{self.queue}", kind, properties)

    def count(self, headers: Mapping[str, Any], body: bytes) -> int:
        return int(headers.get(self.RETRIES, 0))

    def retry(self, kind: str, failures: int, tag: int, properties: pika.BasicProperties) -> None:
        again = self.properties(str(properties.message_id))
        at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S:%f Z")
        again.headers = {self.RETRIES: str(failures), f"{self.RETRIES}.Timestamp": at}
        self.delay(kind, self.order.wait_ms, again)
        self.channel.basic_ack(tag)

    def give_up(self, kind: str, tag: int, properties: pika.BasicProperties) -> None:
        self.publish("", "error", kind, properties)
        self.channel.basic_ack(tag)


class MassTransit(Service):
    """MassTransit, RabbitMQ transport: an exchange and a queue for each endpoint, and one for what
    failed. A redelivery waits in an exchange of the delayed-message plugin."""

    def declare(self) -> None:
        self.queue = f"{self.name}-orders"
        self.sent_to = (self.queue, "")
        for name in (self.queue, f"{self.queue}_error", f"{self.queue}_skipped"):
            self.exchange(name, "fanout")
            self.declare_queue(name)
            self.channel.queue_bind(name, name, "")

    def give_up(self, kind: str, tag: int, properties: pika.BasicProperties) -> None:
        properties.headers = {"MT-Reason": "fault", "MT-Fault-Message": "hopeless order"}
        self.publish(f"{self.queue}_error", "", kind, properties)
        self.channel.basic_ack(tag)


class Wolverine(Service):
    """Wolverine, RabbitMQ transport: each queue dead-letters into one queue. What is scheduled is
    in the database of its inbox."""

    def declare(self) -> None:
        self.queue = f"{self.name}-orders"
        self.sent_to = ("", self.queue)
        dead = "wolverine-dead-letter-queue"
        self.exchange(dead, "fanout")
        self.declare_queue(dead)
        self.channel.queue_bind(dead, dead, dead)
        self.declare_queue(self.queue, dlx=dead)

    def give_up(self, kind: str, tag: int, properties: pika.BasicProperties) -> None:
        self.channel.basic_reject(tag, requeue=False)


def _text(value: str) -> str:
    return f's:{len(value)}:"{value}";'


def main() -> None:
    order = read_order()
    connection = pika.BlockingConnection(pika.URLParameters(order.url))
    channel = connection.channel()
    channel.confirm_delivery()
    services = {one.__name__: one for one in (*Service.__subclasses__(), SymfonyJson)}
    services[order.library](channel, order).run()


if __name__ == "__main__":
    main()
