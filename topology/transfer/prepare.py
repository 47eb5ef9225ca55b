"""How a message is prepared for publication, whoever publishes it: stripped, stamped, addressed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from topology.broker.properties.field_values import FieldError
from topology.broker.properties.raw import is_excluded
from topology.broker.properties.read import edit_properties
from topology.message import DOUBLED_HEADER, PUBLISHED_AT_HEADER, Properties, Publish, Route

USER_ID = frozenset({"user_id"})


def prepare(
    route: Route,
    properties: Properties,
    body: bytes,
    stamp: Mapping[str, Any],
    *,
    is_new: bool = False,
    message_id: str = "",
    may_be_duplicated: bool = False,
    drop: frozenset[str] = USER_ID,
    is_tolerant: bool = False,
) -> Publish:
    """The message as it is published now by this route; every other byte stays as it is.

    Set are the headers of the route, then `stamp`, and a mark where a queue may have the message
    already. Taken off are the properties `drop`, and the headers that dying added or that make
    copies: x-death is interpreted again by brokers before 4.0 and would count into their cycle
    rule, and a foreign user_id closes the channel with 406 (rabbit_dead_letter.erl 3.10.8). A
    message that `is_new` keeps them, and says when it was published.

    Raises FieldError where the bytes cannot be taken apart, so that nothing is edited half. With
    `is_tolerant` they stay as they are: such a message never died.
    """
    now_ms = time.time_ns() // 1_000_000
    headers = {**route.make_headers(now_ms), **stamp}
    if is_new:
        headers[PUBLISHED_AT_HEADER] = now_ms
    if may_be_duplicated:
        headers[DOUBLED_HEADER] = "1"
    try:
        properties = edit_properties(
            properties,
            drop_header=(lambda name: False) if is_new else is_excluded,
            set_headers=headers,
            drop=frozenset() if is_new else drop,
            stated={"message_id": message_id} if message_id else None,
        )
    except FieldError:
        if not is_tolerant:
            raise
    return Publish(route.exchange, route.routing_key, properties, body)
