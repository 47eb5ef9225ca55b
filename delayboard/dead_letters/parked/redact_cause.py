"""Redacts what Delayboard derives from headers: why, where and how often a message died.

These columns of messages and groups are computed from headers. A column is redacted when a rule
redacts any header that it may come from, whatever the message contains; pure.
"""

from __future__ import annotations

from copy import copy
from functools import lru_cache

from delayboard.models import MessageGroup, ParkedMessage
from topology.clients.conventions import built_in
from topology.redaction import HIDDEN, Redaction

# By RabbitMQ; the headers of the first and last death repeat x-death.
_PLACES = (
    "x-death",
    *(
        f"x-{which}-death-{what}"
        for which in ("first", "last")
        for what in ("queue", "reason", "exchange")
    ),
)
# Columns of a group, and of a message: the headers, and names within x-death, behind them, and
# what a client library may state of them.
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
        if any(map(rules.hides_header, names)) or any(_hides_fact(rules, fact) for fact in facts)
    )


def _hides_fact(rules: Redaction, fact: str) -> bool:
    """Whether a rule redacts any place where a library may state it."""
    places = (one.pointer for each in built_in() for one in each.facts.get(fact, ()))
    return any(
        any(map(rules.hides_header, steps))
        if root == "headers"
        else any(rules.hides_body_path(".".join(steps[:end])) for end in range(1, len(steps) + 1))
        for root, *steps in places
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
