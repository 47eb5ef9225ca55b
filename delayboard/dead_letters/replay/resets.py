"""What a client library counted in the messages of a draft, on the example of one."""

from __future__ import annotations

from dataclasses import dataclass

from delayboard.dead_letters.replay.reset_counters import reset_counters
from delayboard.dead_letters.replay.unwrap import unwrap
from delayboard.models import ReplayBatch
from topology.broker.properties.read import read_properties
from topology.clients.describe import describe
from topology.redaction import Redaction


@dataclass(frozen=True)
class Resets:
    """`attempt` of `attempts` is what the library counted, None where it states no number."""

    library: str
    attempt: int | None
    attempts: int | None


def read_resets(batch: ReplayBatch, rules: Redaction) -> Resets | None:
    """Of the first message that is not edited; None where its library counts nothing in it."""
    items = batch.items.filter(edit=None, parked_message__isnull=False).order_by("position")
    columns = ("parked_message__properties", "parked_message__body__data")
    found = items.values_list(*columns).first()
    if found is None:
        return None
    properties, body = read_properties(bytes(found[0])), bytes(found[1])
    if batch.unwraps:
        properties, body = unwrap(properties, body, batch.conventions) or (properties, body)
    reset = reset_counters(properties, body, batch.conventions)
    if reset is None:
        return None
    shown = (rules.headers(properties.headers), rules.body(body))
    read = describe(*shown, own=batch.conventions)
    return Resets(reset.library, read.attempt if read else None, read.attempts if read else None)
