"""What a replay resets of the counters of a client library, on the example of one message."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from delayboard.dead_letters.replay.reset_counters import reset_counters
from delayboard.dead_letters.replay.unwrap import unwrap
from delayboard.models import ReplayBatch
from topology.broker.properties.read import read_properties
from topology.clients.describe import describe
from topology.clients.restart import Edit
from topology.redaction import HIDDEN, Redaction

MOST_CHARACTERS = 60


class Line(NamedTuple):
    """One value: where it stands, what it is now, what is sent of it."""

    place: str
    before: str
    after: str


@dataclass(frozen=True)
class Resets:
    """`attempt` of `attempts` is what the library counted, None where it states no number."""

    library: str
    attempt: int | None
    attempts: int | None
    lines: tuple[Line, ...]


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
    read = describe(properties.headers, body, own=batch.conventions)
    return Resets(
        reset.library,
        read.attempt if read else None,
        read.attempts if read else None,
        tuple(_make_line(edit, rules) for edit in reset.edits),
    )


def _make_line(edit: Edit, rules: Redaction) -> Line:
    _, root, *steps = edit.place.split("/")
    names = [step.replace("~1", "/").replace("~0", "~") for step in steps]
    in_headers = root == "headers"
    is_hidden = any(map(rules.hides_header, names)) if in_headers else bool(rules.body_paths)
    text = HIDDEN if is_hidden else json.dumps(edit.before, ensure_ascii=False, default=str)
    if len(text) > MOST_CHARACTERS:
        text = f"{text[:MOST_CHARACTERS]}…"
    place = f"{'header' if in_headers else 'body'} {'.'.join(names)}"
    return Line(place, text, "removed" if edit.is_removed else "0")
