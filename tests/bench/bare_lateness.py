"""A program of pika that publishes with a delay and takes what arrives, by one clock.

`python -m tests.bench.bare_lateness` reads `{"url", "seconds", "every", "queues", "cases"}` as JSON
from its standard input and prints, by message id, how late each message came, in milliseconds. Each
case publishes a message `every` so many seconds, with its `exchange`, `key`, `headers` and
`delay_ms`; `due_header` gets the due time. An id begins with the `name` of its case and “#”.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import pika

DRAIN_SECONDS = 20.0


def main() -> None:
    given = json.load(sys.stdin)
    due_at: dict[str, float] = {}
    late: dict[str, float] = {}

    def take(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        now = time.time()
        if (due := due_at.pop(properties.message_id or "", None)) is not None:
            late[properties.message_id] = (now - due) * 1000

    with pika.BlockingConnection(pika.URLParameters(given["url"])) as connection:
        channel = connection.channel()
        for queue in given["queues"]:
            channel.basic_consume(queue, take, auto_ack=True)
        began, number = time.monotonic(), 0
        step = given["every"] / len(given["cases"])
        while number * step < given["seconds"]:
            case = given["cases"][number % len(given["cases"])]
            name = f"{case['name']}#{number}"
            headers, delay = dict(case["headers"]), case["delay_ms"] / 1000
            due_at[name] = time.time() + delay
            if case["due_header"]:
                headers[case["due_header"]] = round(due_at[name] * 1000)
            stated = pika.BasicProperties(message_id=name, headers=headers, delivery_mode=2)
            channel.basic_publish(case["exchange"], case["key"], b"{}", stated)
            number += 1
            while (rest := began + number * step - time.monotonic()) > 0:
                connection.process_data_events(time_limit=rest)
        end = time.monotonic() + max(case["delay_ms"] for case in given["cases"]) / 1000
        while due_at and time.monotonic() < end + DRAIN_SECONDS:
            connection.process_data_events(time_limit=0.1)
    json.dump(late, sys.stdout)


if __name__ == "__main__":
    main()
