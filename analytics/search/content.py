"""What of a message is searched: one folded text, and its values by name; pure."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from itertools import islice
from typing import Any

import orjson

from analytics.events import clean
from analytics.search.query import LONGEST_VALUE, FieldValue, number_of
from topology.clients.conventions import Convention
from topology.clients.describe import describe
from topology.content.bodies import unpack
from topology.content.text import fold
from topology.message import Properties

HEADER_CHARACTERS = 8192
BODY_CHARACTERS = 8192
# Largest body with values by name.
JSON_BYTES = 262_144
MOST_FIELDS = 100
MOST_HEADERS = 60
DEEPEST = 6


@dataclass(frozen=True)
class Content:
    text: str = ""
    message_id: str = ""
    fields: tuple[FieldValue, ...] = field(default_factory=tuple)


def read(properties: Properties, body: bytes, own: Sequence[Convention] = ()) -> Content:
    """The content of a message, or of one of whose body only the first JSON_BYTES + 1 bytes are
    known.

    A body that gzip or deflate packed counts as what was packed.
    """
    body = unpack(body, properties.content_encoding or "", JSON_BYTES + 1).data
    document = read_json(body)
    described = describe(properties.headers, body, own=own)
    # Operators have the id that their library logs, which is often not that of AMQP.
    own_id = (described.message_id if described else None) or properties.message_id or ""
    stated = [properties.message_id, properties.correlation_id, properties.type, own_id]
    text = read_text(stated, properties.headers, body, document)
    message_id = fold(clean(own_id))[:LONGEST_VALUE]
    return Content(text, message_id, read_values(properties.headers, document))


def read_values(headers: Mapping[str, Any], document: Any) -> tuple[FieldValue, ...]:
    """The values by name of headers and of a body that is JSON."""
    # The history is in the message's own columns and its group's.
    others = {name: value for name, value in headers.items() if name != "x-death"}
    fields = list(_values("header", others))[:MOST_HEADERS]
    fields += islice(_values("body", document), MOST_FIELDS - len(fields))
    return tuple(dict.fromkeys(fields))


def read_text(
    ids: Iterable[str | None], headers: Mapping[str, Any], body: bytes, document: Any
) -> str:
    """Ids, headers, and the beginning of a body that is text, folded."""
    known = [one for one in dict.fromkeys(ids) if one]
    # Names and values, each once; of the deaths the texts alone.
    texts: dict[str, None] = {}
    room = HEADER_CHARACTERS
    for name, value in headers.items():
        for text in (name, *_texts(value, names=name != "x-death")):
            if text not in texts and room > 0:
                texts[text[:room]] = None
                room -= len(text) + 1
    parts = [*known, "\n".join(texts), _body_text(body, document)]
    return fold("\n".join(clean(part) for part in parts if part))


def _values(name: str, value: Any, depth: int = 0) -> Iterator[FieldValue]:
    if depth > DEEPEST or len(name) > LONGEST_VALUE:
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _values(f"{name}.{fold(clean(key))}", item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _values(name, item, depth + 1)
    elif "." in name:
        text = fold(_text(value))[:LONGEST_VALUE]
        yield FieldValue(name, text, _number(value, text))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return clean(value)


def _number(value: Any, text: str) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float, Decimal)):
        try:
            number = float(value)
        except OverflowError:
            return None
        return number if math.isfinite(number) else None
    return number_of(text)


def read_json(body: bytes) -> Any:
    """The object or list that the body is; None for any other, and for one that is too large."""
    start = body.removeprefix(codecs.BOM_UTF8)
    if len(body) > JSON_BYTES or start.lstrip(b" \t\r\n")[:1] not in (b"{", b"["):
        return None
    try:
        return orjson.loads(start)
    except orjson.JSONDecodeError:
        return _read_loose_json(start)


def _read_loose_json(start: bytes) -> Any:
    """The same with NaN and Infinity in it, which many libraries write though JSON has none."""
    if b"NaN" not in start and b"Infinity" not in start:
        return None
    try:
        return json.loads(start.decode())
    except (ValueError, RecursionError):
        return None


def _texts(value: Any, depth: int = 0, *, names: bool = True) -> Iterator[str]:
    if depth > DEEPEST:
        return
    if isinstance(value, Mapping):
        for name, item in value.items():
            if names:
                yield clean(name)
            elif not isinstance(item, (str, list, tuple)):
                continue
            yield from _texts(item, depth + 1, names=names)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item, depth + 1, names=names)
    else:
        yield _text(value)


def _body_text(body: bytes, document: Any) -> str:
    """The beginning of a body that is text; what JSON writes escaped, as it is, too."""
    try:
        decoder = codecs.getincrementaldecoder("utf-8")()
        text = decoder.decode(body[: 4 * BODY_CHARACTERS])[:BODY_CHARACTERS]
    except UnicodeDecodeError:
        return ""
    if document is not None and "\\" in text:
        text += "\n" + "\n".join(_texts(document))[:BODY_CHARACTERS]
    return text
