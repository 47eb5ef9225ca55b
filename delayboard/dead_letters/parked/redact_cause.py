"""Redacts what Delayboard derives from headers: why, where and how often a message died.

These columns of messages and groups are computed from headers. A column is redacted when a rule
redacts any header that it may come from, whatever the message contains. `preview` shows what a new
rule would redact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from delayboard.models import MessageGroup, ParkedMessage, RedactionKind
from topology.broker.properties.read import read_properties
from topology.content.bodies import unpack
from topology.content.json_tree import read_json, write_json
from topology.message import Message
from topology.models import Broker
from topology.redaction import HIDDEN, Redaction, hides_fact

# Messages that a preview reads, and the size up to which it reads their bodies.
TRIED, LONGEST_BYTES = 200, 16_384
DEEPEST = 20
# Headers with the parts of a failure, by RabbitMQ; those of the first and last death repeat
# x-death.
_PLACES = (
    "x-death",
    *(
        f"x-{which}-death-{what}"
        for which in ("first", "last")
        for what in ("queue", "reason", "exchange")
    ),
)
# Facts of a client library that name an origin. _BEHIND: column of a group and of a message -> the
# headers and names within x-death, and the facts, from which it comes.
_ORIGIN = ("queue", "exchange", "routing_key")
_BEHIND: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "died_in": ((*_PLACES, "queue"), _ORIGIN),
    "parked_from": ((*_PLACES, "queue"), _ORIGIN),
    "reason": ((*_PLACES, "reason"), _ORIGIN),
    "exchange": ((*_PLACES, "exchange"), _ORIGIN),
    "routing_key": ((*_PLACES, "routing-keys"), _ORIGIN),
    "exception": ((), ("exception_type",)),
    "message_type": ((), ("message_type",)),
    "exception_message": ((), ("exception_message",)),
    "deaths": (("x-death", "count"), ()),
    "died_at": (("x-death", "time"), ()),
}
_CAUSES = ("exception", "exception_message", "message_type")
_OF_GROUP = ("died_in", "parked_from", "reason", "exchange", "routing_key", *_CAUSES)
_HISTORY = frozenset(_BEHIND).difference(_CAUSES)


@lru_cache(maxsize=256)
def hidden_columns(rules: Redaction) -> frozenset[str]:
    """The redacted columns of a group, and `deaths` and `died_at` of a message."""
    return frozenset(
        column
        for column, (names, facts) in _BEHIND.items()
        if any(map(rules.hides_header, names)) or any(hides_fact(rules, fact) for fact in facts)
    )


def hides_history(rules: Redaction) -> bool:
    """Whether a rule redacts any part of where and how a message died."""
    return not _HISTORY.isdisjoint(hidden_columns(rules))


def seen_group(group: MessageGroup, rules: Redaction) -> MessageGroup:
    """The group for display, never to be saved; redacted values are HIDDEN."""
    hidden = hidden_columns(rules).intersection(_OF_GROUP)
    if not hidden:
        return group
    seen = copy(group)
    for column in hidden:
        setattr(seen, column, HIDDEN)
    return seen


def seen_parked_message(parked_message: ParkedMessage, rules: Redaction) -> ParkedMessage:
    """The message with its group to be shown, never to be saved. Its last routing key may still
    be that of its first death.
    """
    hidden = hidden_columns(rules)
    if not hidden:
        return parked_message
    seen = copy(parked_message)
    seen.group = seen_group(parked_message.group, rules)
    if "routing_key" in hidden:
        seen.routing_key = HIDDEN
    return seen


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
