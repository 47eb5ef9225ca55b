"""Sentences on a dry run as a whole: messages that are missing and why; what it waits for."""

from __future__ import annotations

from delayboard.dead_letters.replay.check.targets import ALL_UNKNOWN_TARGETS
from delayboard.models import ReplayBatch
from topology.content.text import count_text

NOTHING = "There is no message to replay. The selected messages are discarded, replayed or deleted."
NOT_FOUND = "They are no longer in the queue: they were parked before, consumed, or expired."


def explain_nothing(batch: ReplayBatch) -> str:
    """Why there is nothing in it."""
    if batch.parking is None:
        return NOTHING
    error = batch.parking.work.error if batch.parking.work else ""
    return f"None of the chosen messages could be parked. {error or NOT_FOUND}"


def describe_missing(batch: ReplayBatch) -> str:
    """How many selected messages are missing; "" for none, or when they were not counted."""
    if batch.parking is not None:
        parks = batch.parking.work
        why = "are no longer in the queue"
        if parks is not None and parks.error:
            why = f"could not be parked: {parks.error.rstrip('.')}"
        return _describe_number((batch.parking.requested or 0) - batch.selected, why)
    if batch.parked_messages is not None:
        missing = len(set(batch.parked_messages)) - batch.selected
        return _describe_number(missing, "are excluded: they are discarded, replayed or deleted")
    return ""


def explain_draft(batch: ReplayBatch, age: str) -> str:
    """What to know of it beside its verdicts; `age` is that of what is known of the broker."""
    return " ".join(filter(None, (explain_no_route(batch), describe_missing(batch), age)))


def explain_no_route(batch: ReplayBatch) -> str:
    """Why none of its items has a target; "" when one has, or all are excluded."""
    used = batch.routes.filter(items_number__gt=0)
    if used.exclude(exchange="", routing_key="").exists():
        return ""
    verdicts = set(used.values_list("verdict", flat=True)[:2])
    if not verdicts:
        return ""
    return verdicts.pop() if len(verdicts) == 1 else ALL_UNKNOWN_TARGETS


def _describe_number(number: int, sentence: str) -> str:
    return f"{count_text(number)} of the chosen messages {sentence}." if number > 0 else ""
