"""What a rule would hide, tried on the newest parked messages before it is made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from delayboard.models import ParkedMessage, RedactionKind
from topology.broker.properties.read import read_properties
from topology.content.bodies import unpack
from topology.content.json_tree import read_json, write_json
from topology.message import Message
from topology.models import Broker
from topology.redaction import Redaction

# Of so many messages longer ones are not looked at.
TRIED, LONGEST_BYTES = 200, 16_384
DEEPEST = 20


@dataclass(frozen=True)
class Preview:
    """The newest of those `tried` of which the rule hides something; `row` None where none is.

    `names` are the hidden headers, a name within a table behind that of the table; `body` is what
    would be left of the body.
    """

    tried: int
    row: ParkedMessage | None = None
    names: tuple[str, ...] = ()
    body: str = ""


def preview(broker: Broker, kind: str, pattern: str) -> Preview:
    """`kind` and `pattern` are those of a rule that can be made."""
    rows = ParkedMessage.objects.filter(broker=broker, size__lte=LONGEST_BYTES).order_by("-pk")
    if kind == RedactionKind.BODY:
        rows = rows.select_related("body")
    tried = 0
    for row in rows[:TRIED].iterator(50):
        tried += 1
        found = _of_body(row, pattern) if kind == RedactionKind.BODY else _of_headers(row, pattern)
        if found:
            return Preview(tried, row, **found)
    return Preview(tried)


def _of_headers(row: ParkedMessage, pattern: str) -> dict[str, Any]:
    headers = read_properties(bytes(row.properties)).headers
    names = tuple(dict.fromkeys(_count_hidden("", headers, Redaction((pattern,)))))
    return {"names": names} if names else {}


def _count_hidden(place: str, value: Any, rules: Redaction, depth: int = 0) -> Iterator[str]:
    if depth == DEEPEST:
        return
    if isinstance(value, Mapping):
        for name, item in value.items():
            if rules.hides_header(name):
                yield f"{place}{name}"
            else:
                yield from _count_hidden(f"{place}{name} / ", item, rules, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _count_hidden(place, item, rules, depth + 1)


def _of_body(row: ParkedMessage, pattern: str) -> dict[str, Any]:
    """Nothing for a body that is no JSON: any rule hides all of it, whatever its path."""
    message: Message = row.message
    encoding = message.properties.content_encoding or ""
    data = unpack(message.body, encoding, LONGEST_BYTES + 1).data
    tree = read_json(data) if len(data) <= LONGEST_BYTES else None
    if tree is None:
        return {}
    try:
        masked = Redaction(body_paths=(pattern,)).tree(tree)
        return {} if masked == tree else {"body": write_json(masked)}
    except RecursionError:
        return {}
