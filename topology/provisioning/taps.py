"""The tap of a topology: a bounded queue bound beside the real bindings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, TypeAlias

from topology.definitions import Arguments, ArgumentValue, Binding, Definitions, Queue, is_tap
from topology.message import Publish
from topology.routing.walk import walk
from topology.structure.copies import Tap

TapType: TypeAlias = Literal["classic", "quorum", "stream"]

DEFAULT_TAP: TapType = "classic"
QUEUE_BYTES = 50_000_000
# From 4.0 on a quorum queue drops what was delivered twenty times. No limit, -1, is refused by 3.10
# and lets copies change their order, so that it is one that no recorder reaches.
QUORUM_DELIVERIES = 1_000_000_000
# The tap type of what was adopted and is not to be recorded: nothing of it is in the broker.
NO_TAP = "none"
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
    # Of an earlier version, until the recorder has replaced it: a stream can close publishers'
    # connections and crash queues.
    "stream": {
        "x-queue-type": "stream",
        "x-max-length-bytes": 500_000_000,
        "x-stream-max-segment-size-bytes": 25_000_000,
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


def tapped_exchanges(definitions: Definitions) -> frozenset[str]:
    """The exchanges from which a tap of ours can be reached."""
    sources = {b.source for b in definitions.bindings if is_tap(b.destination)}
    while True:
        wider = sources | {b.source for b in definitions.bindings if b.destination in sources}
        if wider == sources:
            return frozenset(sources)
        sources = wider


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
