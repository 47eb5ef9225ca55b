"""The counts of a queue move, and the sentences about them; pure."""

from __future__ import annotations

from collections.abc import Mapping

from delayboard.models import ReplayBatch
from topology.content.text import count_of, count_text

SENT = ("done", "returned", "failed", "unknown")
COUNTED = (*SENT, "doubled")
REFUSED_AGAIN = "Messages without a confirm are back in the queue, and are sent again."


def add_counts(
    batch: ReplayBatch, base: Mapping[str, int], counted: Mapping[str, int]
) -> dict[str, int]:
    """The counts at the start of the run plus its own; together at most all messages."""
    room = batch.selected - batch.cancelled
    counts = {"doubled": min(batch.selected, base["doubled"] + counted.get("doubled", 0))}
    for name in SENT:
        counts[name] = min(room, base[name] + counted.get(name, 0))
        room -= counts[name]
    return counts


def describe_refused(batch: ReplayBatch, error: str) -> str:
    """What stays in the queue; `error` is why the first of it does."""
    if not batch.remaining:
        return ""
    stay = count_of(batch.remaining, "message", "stays")
    may = f" {count_text(batch.unknown)} of them may have arrived as well." if batch.unknown else ""
    return f"{stay} in “{batch.queue}”.{may}{_describe_first(error)}"


def explain_stuck(unknown: int, error: str) -> str:
    """Why a run rests of which nothing went for so long as refused ones may be held, or of which so
    many may have arrived.
    """
    back = (
        f"{count_of(unknown, 'message', 'is')} back in the queue and may have arrived as well."
        if unknown
        else "RabbitMQ refused every message; they are back in the queue."
    )
    return f"{back}{_describe_first(error)}"


def _describe_first(error: str) -> str:
    return f" The first: {error}" if error else ""


def describe_missing(number: int, queue: str) -> str:
    if not number:
        return ""
    return (
        f"{count_of(number, 'message', 'is')} not in “{queue}” any more, because of a consumer, a "
        "TTL or a run that stopped right after the move."
    )


def describe_doubled(number: int) -> str:
    if not number:
        return ""
    return (
        f"Up to {count_text(number)} may be duplicated, because RabbitMQ rejected them or a run "
        "stopped while it sent them."
    )
