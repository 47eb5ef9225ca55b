"""The trace that a message belongs to, as its headers state it (W3C Trace Context)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

# Headers with a trace parent, in this order: OpenTelemetry and NServiceBus, CloudEvents (AMQP
# binding 3.2.1), MassTransit since 8 and before (Logging/DiagnosticHeaders.cs).
PARENTS = (
    *("traceparent", "cloudevents:traceparent", "cloudevents_traceparent"),
    *("mt-activity-id", "diagnostic-id"),
)
STATES = ("tracestate", "cloudevents:tracestate", "cloudevents_tracestate")
# A trace parent: version, trace, parent, flags; versions after 00 may have more
# (w3.org/TR/trace-context).
PARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
LONGEST_STATE = 512


@dataclass(frozen=True)
class Trace:
    """`trace_id` and `parent_id` (the span that published) are hex digits; `state` may be ""."""

    trace_id: str
    parent_id: str
    is_sampled: bool
    state: str = ""


def read_trace(headers: Mapping[str, object]) -> Trace | None:
    """None for headers that state no valid trace. Reads what any client can have sent."""
    by_name = {name.lower(): value for name, value in headers.items()}
    for name in PARENTS:
        found = PARENT.fullmatch(_text(by_name.get(name)))
        if found and (found[1] != "00" or not found[5]):
            states = [_text(by_name.get(name)) for name in STATES]
            is_sampled = bool(int(found[4], 16) & 1)
            return Trace(found[2], found[3], is_sampled, next(filter(_is_state, states), ""))
    return None


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii", "replace")
    return value if isinstance(value, str) else ""


def _is_state(text: str) -> bool:
    return text.isascii() and text.isprintable() and 0 < len(text) <= LONGEST_STATE
