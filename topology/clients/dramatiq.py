"""dramatiq: messages in `QUEUE.DQ`, which its workers take out at once and hold until they are due.

RabbitMQ knows no due time. It is in the JSON of the body, with the id and the number of failures.
When a message is due, the worker publishes it into QUEUE; a dead letter goes to `QUEUE.XQ`.
Source: dramatiq 2.2.1, brokers/rabbitmq.py, worker.py, message.py; tried (tests/outside).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from topology.definitions import MAXIMUM_TTL_MS, Definitions, Queue

NAME = "dramatiq"
_DELAYED, _DEAD = ".DQ", ".XQ"


@dataclass(frozen=True)
class Body:
    """`due_at_ms`: UTC milliseconds by the publisher's clock; None for what is due at once."""

    message_id: str
    due_at_ms: int | None
    failures: int


def find_held(found: Definitions) -> Mapping[str, str]:
    """Queues whose messages its workers hold, each with the queue into which they publish them."""
    held = {}
    for queue in found.queues:
        if not queue.name.endswith(_DELAYED):
            continue
        work = found.queue(queue.name.removesuffix(_DELAYED))
        if work and all(_dies_into(one, work.name + _DEAD) for one in (queue, work)):
            held[queue.name] = work.name
    return held


def _dies_into(queue: Queue, dead: str) -> bool:
    return (
        queue.dead_letter_exchange == ""
        and queue.dead_letter_routing_key == dead
        and queue.message_ttl_ms is None
    )


def read_body(body: bytes) -> Body | None:
    """None for what is no message of dramatiq's own encoder."""
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(read, Mapping) or not isinstance(options := read.get("options"), Mapping):
        return None
    name = read.get("message_id")
    return Body(
        name if isinstance(name, str) else "",
        _read_number(options.get("eta"), 2 * MAXIMUM_TTL_MS * 1000),
        _read_number(options.get("retries"), 1_000_000) or 0,
    )


def _read_number(value: Any, most: int) -> int | None:
    """A number up to `most`, rounded down; None for anything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return int(value) if is_number and 0 <= value <= most else None
