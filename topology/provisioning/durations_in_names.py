"""Durations in the names of delay queues, such as "orders.60s", and those that are not true."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta

from topology.definitions import Definitions
from topology.delays import DelayError, format_delay, milliseconds, parse_delay

# Between signs that part words, at least one unit, nothing else: "60s", "1h30m", "retry_5m".
_DURATION = re.compile(r"(?:[0-9]{1,12}(?:ms|w|d|h|m|s))+", re.IGNORECASE)
_PARTS = re.compile(r"[^0-9A-Za-z]+")
MILLISECOND = timedelta(milliseconds=1)


def read_stated_ms(name: str) -> int | None:
    """The one duration that a name states, in milliseconds; None for none and for several."""
    parts = [part for part in _PARTS.split(name) if _DURATION.fullmatch(part)]
    if len(parts) != 1:
        return None
    try:
        return milliseconds(parse_delay(parts[0]))
    except DelayError:
        return None


def untrue_names(names: Iterable[str], found: Definitions) -> tuple[str, ...]:
    """A sentence for each queue whose name states another time than its TTL in force."""
    sentences = []
    for name in sorted(names):
        queue, stated = found.queue(name), read_stated_ms(name)
        ttl = queue.message_ttl_ms if queue else None
        if stated is not None and ttl is not None and ttl != stated:
            held = format_delay(MILLISECOND * ttl)
            named = format_delay(MILLISECOND * stated)
            sentences.append(
                f"The name of the queue “{name}” states {named}, but the TTL is {held}."
            )
    return tuple(sentences)
