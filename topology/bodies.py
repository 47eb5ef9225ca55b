"""The body of a message as a person reads it: indented JSON, plain text, or a hex dump; pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

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
