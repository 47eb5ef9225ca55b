"""A dead letter as a person reads it: body, headers, properties, history; pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from delayboard.dead_letters.browse import Letter
from delayboard.dead_letters.replay.verdict import Target, default_target
from topology.definitions import Definitions
from topology.delays import format_delay
from topology.routing.index import Index
from topology.routing.outcome import Outcome, Walk
from topology.routing.remaining import remaining

SHOWN_BYTES = 16_384
HEX_BYTES = 2048
HEX_WIDTH = 16


@dataclass(frozen=True)
class Body:
    """`text` is pretty JSON, plain text, or a hex dump; `is_cut` when there is more of it."""

    form: Literal["empty", "json", "text", "hex"]
    text: str
    size: int
    is_cut: bool


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


def show_body(body: bytes) -> Body:
    """JSON is indented only when all of it is shown, so that nothing is shown as it is not."""
    if not body:
        return Body("empty", "", 0, is_cut=False)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return Body("hex", hex_dump(body[:HEX_BYTES]), len(body), len(body) > HEX_BYTES)
    if any(ord(sign) < 32 and sign not in "\t\n\r" for sign in text):
        return Body("hex", hex_dump(body[:HEX_BYTES]), len(body), len(body) > HEX_BYTES)
    if len(body) <= SHOWN_BYTES and (pretty := _pretty(text)) is not None:
        return Body("json", pretty, len(body), is_cut=False)
    return Body("text", text[:SHOWN_BYTES], len(body), len(text) > SHOWN_BYTES)


def hex_dump(data: bytes) -> str:
    """Lines of offset, 16 bytes in hex, and what of them is printable ASCII."""
    lines = []
    for offset in range(0, len(data), HEX_WIDTH):
        piece = data[offset : offset + HEX_WIDTH]
        printable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{offset:08x}  {piece.hex(' '):<{HEX_WIDTH * 3 - 1}}  {printable}")
    return "\n".join(lines)


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


def _pretty(text: str) -> str | None:
    """Indented JSON; None when it is none, or when reading it would change a number or a key."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        read = json.loads(text, object_pairs_hook=_unique)
        pretty = json.dumps(read, indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    compact = json.dumps(read, ensure_ascii=False, separators=(",", ":"))
    return pretty if _unspaced(compact) == _unspaced(text) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) != len(pairs):
        raise ValueError("a name stands twice")
    return read


def _unspaced(text: str) -> str:
    return "".join(text.split())
