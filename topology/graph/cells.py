"""The live numbers of a vhost as the texts and states that a page shows: key -> text."""

from __future__ import annotations

from typing import Literal, TypeAlias

from topology.definitions import Queue
from topology.snapshot import QueueNumbers, Snapshot

Mark: TypeAlias = Literal["unknown", "down", "full", "stuck", "waiting", "busy", "empty"]

UNKNOWN = "–"
MARK_WORDS: dict[str, str] = {
    "unknown": "no numbers",
    "down": "not running",
    "full": "full",
    "stuck": "messages wait and nobody consumes",
    "waiting": "messages wait for their time",
    "busy": "messages wait for consumers",
    "empty": "empty",
    "missing": "missing in the broker",
}


def count_text(number: int | None) -> str:
    """A count in groups of three parted by narrow spaces; a dash when it is unknown."""
    return UNKNOWN if number is None else f"{number:,}".replace(",", "\u202f")


def rate_text(per_second: float | None) -> str:
    """A rate such as "0.4/s", "12/s" or "1 200/s"; a dash when it is unknown."""
    if per_second is None:
        return UNKNOWN
    if 0 < per_second < 10:
        return f"{per_second:.1f}/s" if per_second >= 0.05 else "<0.1/s"
    return f"{count_text(round(per_second))}/s"


def queue_cells(name: str, numbers: QueueNumbers) -> dict[str, str]:
    """The texts of one queue, by keys such as "queue/orders/messages"."""
    return {
        f"queue/{name}/messages": count_text(numbers.messages),
        f"queue/{name}/ready": count_text(numbers.ready),
        f"queue/{name}/unacked": count_text(numbers.unacked),
        f"queue/{name}/consumers": count_text(numbers.consumers),
        f"queue/{name}/publish_rate": rate_text(numbers.publish_rate),
        f"queue/{name}/deliver_rate": rate_text(numbers.deliver_rate),
    }


def snapshot_cells(snapshot: Snapshot) -> dict[str, str]:
    """The texts of every queue and exchange of a vhost."""
    cells: dict[str, str] = {}
    for name, numbers in snapshot.numbers.items():
        cells.update(queue_cells(name, numbers))
    for name, per_second in snapshot.exchange_rates.items():
        cells[f"exchange/{name}/rate"] = rate_text(per_second)
    return cells


def queue_mark(queue: Queue, numbers: QueueNumbers | None) -> Mark:
    """The state of a queue in one word; `MARK_WORDS` says it to people."""
    if numbers is None or numbers.messages is None:
        return "unknown"
    if numbers.state in ("down", "crashed", "stopped"):
        return "down"
    limit = queue.arguments.number("x-max-length")
    if limit and numbers.messages >= limit:
        return "full"
    if not numbers.messages:
        return "empty"
    if numbers.consumers:
        return "busy"
    return "stuck" if queue.message_ttl_ms is None else "waiting"


def snapshot_marks(snapshot: Snapshot) -> dict[str, str]:
    """The state of every queue, by keys such as "queue/orders"."""
    return {
        f"queue/{queue.name}": queue_mark(queue, snapshot.numbers.get(queue.name))
        for queue in snapshot.definitions.queues
    }
