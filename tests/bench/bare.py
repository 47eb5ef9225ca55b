"""A pika consumer that only acknowledges: `python -m tests.bench.bare QUEUE MESSAGES ACK_EVERY`.

The AMQP address is in the environment, as BARE_URL. Prints messages a second, from the first to
the last. A process of its own, since Delayboard has pika leave out the decoding of properties.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import pika

PREFETCH = 3000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("queue")
    parser.add_argument("messages", type=int)
    parser.add_argument("ack_every", type=int)
    arguments = parser.parse_args()
    times: list[float] = []

    def take(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        times.append(time.monotonic())
        if len(times) % arguments.ack_every == 0:
            channel.basic_ack(method.delivery_tag, multiple=arguments.ack_every > 1)
        if len(times) == arguments.messages:
            channel.stop_consuming()

    with pika.BlockingConnection(pika.URLParameters(os.environ["BARE_URL"])) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(arguments.queue, take)
        channel.start_consuming()
    sys.stdout.write(f"{len(times) / (times[-1] - times[0])}\n")


if __name__ == "__main__":
    main()
