"""The tap of a topology: a bounded queue bound beside the real bindings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Literal, TypeAlias

from topology.definitions import Arguments, ArgumentValue, Binding, Definitions, Queue, is_tap
from topology.message import Publish
from topology.routing.walk import walk
from topology.structure.copies import Tap

TapType: TypeAlias = Literal["classic", "quorum", "stream"]

# A stream can close publishers' connections and crash queues, on every version (docs/event-log.md).
DEFAULT_TAP: TapType = "classic"
QUEUE_BYTES = 50_000_000
# From 4.0 on a quorum queue drops what was delivered twenty times. No limit, -1, is refused by 3.10
# and lets copies change their order, so that it is one that no recorder reaches.
QUORUM_DELIVERIES = 1_000_000_000
STREAM_BYTES = 500_000_000
# The tap type of what was adopted and is not to be recorded: nothing of it is in the broker.
NO_TAP = "none"
FILTER_HEADER, FILTER_BYTES = "x-stream-filter-value", 4096
# A stream drops whole segments only, so that small ones keep it near its bound.
STREAM_SEGMENT_BYTES = 25_000_000
ARGUMENTS: dict[TapType, dict[str, ArgumentValue]] = {
    "classic": {
        "x-queue-type": "classic",
        "x-max-length-bytes": QUEUE_BYTES,
        "x-overflow": "drop-head",
    },
    "quorum": {
        "x-queue-type": "quorum",
        "x-max-length-bytes": QUEUE_BYTES,
        "x-overflow": "drop-head",
        "x-delivery-limit": QUORUM_DELIVERIES,
    },
    "stream": {
        "x-queue-type": "stream",
        "x-max-length-bytes": STREAM_BYTES,
        "x-stream-max-segment-size-bytes": STREAM_SEGMENT_BYTES,
    },
}


def choose_tap(nodes: Collection[str], definitions: Definitions) -> TapType:
    """Which tap of a topology never changes the answer that a publisher gets.

    RabbitMQ answers a publish for all queues on its way. A classic tap is on one node: without that
    node 4.0 and later refuse the publish that the topology took (docs/event-log.md). A quorum
    queue survives a node where there are three. Of two it survives none, as do the quorum queues
    beside it, but classic ones would.
    """
    is_quorum = any(queue.type == "quorum" for queue in definitions.queues)
    return "quorum" if len(nodes) > 2 or (len(nodes) == 2 and is_quorum) else "classic"


def tap_definitions(queue: str, taps: Sequence[Tap], tap_type: TapType) -> Definitions:
    """A queue that drops its oldest copies when full, so that it never refuses; none for no taps.

    A tap that refuses would stall at-least-once dead-lettering
    (rabbit_fifo_dlx_worker.erl 4.3.5).
    """
    if not taps:
        return Definitions()
    bindings = (
        Binding(tap.exchange, queue, tap.routing_key, arguments=tap.arguments) for tap in taps
    )
    return Definitions.of([Queue(queue, arguments=Arguments(ARGUMENTS[tap_type])), *bindings])


def tapped_exchanges(definitions: Definitions, *, by: TapType | None = None) -> frozenset[str]:
    """The exchanges from which a tap of ours can be reached; `by` leaves the other type out."""
    taps = {b.destination for b in definitions.bindings if is_tap(b.destination)}
    if by is not None:
        taps &= {queue.name for queue in definitions.queues if queue.type == by}
    sources = {b.source for b in definitions.bindings if b.destination in taps}
    while True:
        wider = sources | {b.source for b in definitions.bindings if b.destination in sources}
        if wider == sources:
            return frozenset(sources)
        sources = wider


def breaks_stream_taps(definitions: Definitions, publish: Publish) -> str:
    """Why this message must not be published where a stream tap of ours is bound; "" when it may.

    Such a publish closes the connection (541), and whatever else it had in flight is unknown then.
    """
    broken = breaking_header(publish.properties.headers)
    if not broken or publish.exchange not in tapped_exchanges(definitions, by="stream"):
        return ""
    return (
        f"{broken}. With the stream tap at “{publish.exchange}”, RabbitMQ would close the "
        "connection. Use a classic tap, or replay to the queue through the default exchange."
    )


def breaking_header(headers: Mapping[str, object]) -> str:
    """Which header breaks a stream, and by what it holds; "" when none does.

    A decimal breaks it; tables and lists are only kept in headers that begin with “x-”, so that
    a decimal within others does no harm. The filter value must be text of at most
    4096 bytes. Tried with all field types on 3.10.8, 4.0.5 and 4.3.6
    (tests/real_broker/test_stream_taps.py).
    """
    for name, value in headers.items():
        if name == FILTER_HEADER and not (
            isinstance(value, str) and len(value.encode()) <= FILTER_BYTES
        ):
            return f"The header “{name}” is not a text of at most {FILTER_BYTES} bytes"
        if isinstance(value, Decimal) or (name.startswith("x-") and _holds_decimal(value)):
            return f"The header “{name}” holds a decimal number"
    return ""


def _holds_decimal(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_decimal(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_decimal(item) for item in value)
    return isinstance(value, Decimal)


def lost_without_taps(definitions: Definitions, publish: Publish) -> str:
    """Why only a tap of ours can have received the message; "" when another queue can.

    The broker confirms a message that only a tap receives, so a confirm at a tapped exchange does
    not prove that the message arrived anywhere.
    """
    walked = walk(
        definitions.without_taps(),
        publish.exchange,
        publish.routing_key,
        headers=publish.properties.headers,
    )
    return "" if walked.is_routed else walked.outcomes[0].why
