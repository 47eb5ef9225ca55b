"""A dead letter as a person reads it: body, headers, properties, history; pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from delayboard.dead_letters.browse import Letter
from delayboard.dead_letters.replay.verdict import Target, default_target
from topology.bodies import Body, show_body
from topology.definitions import Definitions
from topology.delays import format_delay
from topology.routing.index import Index
from topology.routing.outcome import Outcome, Walk
from topology.routing.remaining import remaining


@dataclass(frozen=True)
class Row:
    """A header or property: its name, its type's name and its value as text."""

    name: str
    type: str
    value: str


@dataclass(frozen=True)
class Shown:
    letter: Letter
    body: Body
    headers: tuple[Row, ...]
    properties: tuple[Row, ...]
    target: Target | None
    onward: str


def show(
    letter: Letter,
    found: Definitions | Index,
    delay_queues: Collection[str],
    *,
    queue: str = "",
    version: tuple[int, ...] = (),
) -> Shown:
    """`queue` is where it lies: what becomes of it there by itself is said in `onward`."""
    message = letter.message
    return Shown(
        letter=letter,
        body=show_body(message.body),
        headers=rows(message.headers),
        properties=rows(message.properties.stated()),
        target=default_target(letter.history, found, delay_queues),
        onward=onward(remaining(found, message, queue, version=version)) if queue else "",
    )


def onward(walked: Walk) -> str:
    """What becomes of a message that nobody takes; "" when it just stays where it is."""
    if all(outcome.ending == "delivered" and len(outcome.hops) < 2 for outcome in walked.outcomes):
        return ""
    return " ".join(_end(outcome) for outcome in walked.outcomes)


def _end(outcome: Outcome) -> str:
    latest = outcome.latest
    within = "" if latest is None else f" within {format_delay(latest)}"
    match outcome.ending:
        case "delivered":
            return f"It arrives in {outcome.queue}{within}."
        case "held":
            return f"It is held for ever: {outcome.why}."
        case "dropped":
            return f"It is lost{within}: {outcome.why}."
    return f"What becomes of it is not known: {outcome.why}."


def rows(values: Mapping[str, Any]) -> tuple[Row, ...]:
    return tuple(Row(name, type_name(value), shown(value)) for name, value in values.items())


def type_name(value: Any) -> str:
    """The AMQP type in words."""
    names: list[tuple[type, str]] = [
        (bool, "boolean"),
        (int, "integer"),
        (float, "float"),
        (Decimal, "decimal"),
        (str, "text"),
        (bytes, "bytes"),
        (datetime, "time"),
        (Mapping, "table"),
        (Sequence, "list"),
    ]
    return next((name for kind, name in names if isinstance(value, kind)), "nothing")


def shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.hex(" ")
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC"
    if isinstance(value, (Mapping, list, tuple)):
        return json.dumps(value, indent=2, ensure_ascii=False, default=shown)
    return "" if value is None else str(value)
