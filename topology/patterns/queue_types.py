"""The type of the queues of a pattern: on one node, or replicated on the nodes of a cluster.

A work queue that is part of a ring has no delivery limit. A message that reaches the limit is
dead-lettered with a reason that does not break RabbitMQ's rule against cycles, so that RabbitMQ
drops it on its way back (tried, 4.0.5 and 4.3.6). 3.10 refuses the argument that says so.
"""

from __future__ import annotations

from collections.abc import Iterable

from topology.definitions import Queue

QUEUE_TYPES = {
    "classic": "classic, on one node",
    "quorum": "quorum, replicated",
}
FIRST_WITHOUT_LIMIT = (4, 0)


def type_arguments(queue_type: str, *, is_limited: bool = True) -> dict[str, str | int]:
    """The arguments of a queue; `is_limited` False: consumers may fail without end."""
    stated: dict[str, str | int] = {"x-queue-type": queue_type}
    if queue_type == "quorum" and not is_limited:
        stated["x-delivery-limit"] = -1
    return stated


def read_type(queue: Queue) -> str:
    """The one of QUEUE_TYPES that may have declared this queue."""
    return "quorum" if queue.type == "quorum" else "classic"


def explain_limit(queues: Iterable[Queue], version: tuple[int, ...]) -> str:
    """Why a broker of this version cannot have these queues; an unknown one is the newest."""
    if not version or version >= FIRST_WITHOUT_LIMIT:
        return ""
    names = [queue.name for queue in queues if queue.arguments.get("x-delivery-limit") == -1]
    if not names:
        return ""
    return (
        f"RabbitMQ {'.'.join(map(str, version))} cannot declare the quorum queue “{names[0]}” "
        "without a delivery limit (4.0 and later). Choose classic queues."
    )
