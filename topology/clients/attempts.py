"""How often a message failed, as its client counts it.

A consumer that publishes a failed message again begins a new x-death from RabbitMQ 4.0 on, so that
only its own counter goes on. Tried with the libraries as packages, and with services to the letter
of the sources of others (tests/outside).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from topology.clients.conventions import built_in
from topology.clients.forms import FORMS
from topology.clients.parts import ANY, Parts, Pointer
from topology.message import ATTEMPT_HEADER, Headers

# What Symfony's default serializer, PHP's own, writes into the body.
_STAMP_IN_BODY = re.compile(rb'RedeliveryStamp\\0retryCount\\";i:([0-9]{1,6});')


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
