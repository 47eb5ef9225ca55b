"""What the client library of a failed message wrote into it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from topology.clients.conventions import Convention, built_in
from topology.clients.forms import FORMS
from topology.clients.parts import ANY, Parts, Pointer
from topology.message import ATTEMPT_HEADER, Headers, Message

# Retry count in a body by Symfony's default serializer, which is PHP's own.
_STAMP_IN_BODY = re.compile(rb'RedeliveryStamp\\0retryCount\\";i:([0-9]{1,6});')
# Reason of a failure whose message the consumer itself published to an error queue; no word of
# RabbitMQ.
REPUBLISHED = "republished"


@dataclass(frozen=True)
class Description:
    """Each is None where the library, or this message, does not state it.

    `exchange`, `routing_key` and `queue` say where the message came from before it failed;
    `attempt` numbers the one that failed, from 1, of `attempts`. Times are in UTC.
    """

    library: str
    exchange: str | None = None
    routing_key: str | None = None
    queue: str | None = None
    exception_type: str | None = None
    exception_message: str | None = None
    stack_trace: str | None = None
    machine: str | None = None
    failed_at: datetime | None = None
    attempt: int | None = None
    attempts: int | None = None
    message_id: str | None = None
    correlation_id: str | None = None
    message_type: str | None = None
    publisher: str | None = None

    @property
    def is_of_failure(self) -> bool:
        """Whether it states a failure: where the message failed, or by which exception."""
        stated = (self.exchange, self.queue, self.exception_type, self.exception_message)
        return any(one is not None for one in stated)


def describe(
    headers: Any, body: Any = b"", routing_key: Any = "", own: Sequence[Convention] = ()
) -> Description | None:
    """None for a message of no known library; conventions of an operator's `own` come first.

    What the library does not state is read from common headers. Reads what any client can have
    sent, and never raises.
    """
    parts = Parts(headers, body, routing_key)
    names, keys = _list_marks()
    if not (own or parts.has_header_of(names) or any(map(parts.may_have, keys))):
        return None
    library = find_library(parts, own)
    common = built_in()[-1]
    stated = _read_facts(common, parts)
    if library is not None:
        stated |= _read_facts(library, parts)
    elif not stated:
        return None
    return Description((library or common).name, **stated)


def describe_message(message: Message, own: Sequence[Convention] = ()) -> Description | None:
    """What its library wrote into this message."""
    return describe(message.headers, message.body, message.routing_key, own)


def find_library(parts: Parts, own: Sequence[Convention] = ()) -> Convention | None:
    """The convention of the library that wrote the message."""
    for convention in (*own, *built_in()):
        for row in convention.known_by:
            if not row or not all(map(parts.may_have, row)):
                continue
            if all(parts.get(pointer) is not None for pointer in row):
                return convention
    return None


@cache
def _list_marks() -> tuple[frozenset[str], tuple[Pointer, ...]]:
    """Headers one of which each message that says anything has, or else a key in its body: most
    messages say nothing, and a recorder reads all of them.
    """
    common = (fact.pointer for facts in built_in()[-1].facts.values() for fact in facts)
    rows = (row for one in built_in() for row in one.known_by)
    # All marks of a row must be there, so one is enough: a header is found faster than a key.
    marks = {*common, *(min(row, key=lambda one: one[0] != "headers") for row in rows)}
    names = frozenset(one[1] for one in marks if one[0] == "headers")
    return names, tuple(one for one in marks if one[0] != "headers")


def _read_facts(convention: Convention, parts: Parts) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, facts in convention.facts.items():
        for fact in facts:
            found = parts.get(fact.pointer)
            if found is not None and (value := FORMS[fact.form](found)) is not None:
                values[name] = value
                break
    return values


@cache
def _list_counters() -> Sequence[Pointer]:
    """The headers in which libraries count failures, and that of our examples."""
    facts = (fact for one in built_in() for fact in one.facts.get("attempt", ()))
    counting = [fact.pointer for fact in facts if fact.form == "failures"]
    return (
        ("headers", ATTEMPT_HEADER),
        *dict.fromkeys(one for one in counting if one[0] == "headers"),
    )


def count_failures(headers: Headers, queue: str, body: bytes = b"") -> int:
    """Failures so far in this queue; 0 where the client counts none.

    `body`: of messages whose library may count there.
    """
    parts: Parts | None = None
    for pointer in _list_counters():
        if pointer[1] not in headers:
            continue
        parts = parts or Parts(headers, b"", "")
        found: Any = parts.get(tuple(queue if step == ANY else step for step in pointer))
        if number := FORMS["number"](found):
            return int(number)
    counts = _STAMP_IN_BODY.findall(body)
    return int(counts[-1]) if counts else 0
