"""The tap of a topology: a bounded queue bound beside the real bindings."""

from __future__ import annotations

from collections.abc import Sequence

from topology.definitions import TAP_PREFIX, Arguments, Binding, Definitions, Queue
from topology.message import Publish
from topology.patterns.pattern import Tap
from topology.routing.walk import walk

TAP_BYTES = 50_000_000


def tap_definitions(queue: str, taps: Sequence[Tap]) -> Definitions:
    """A classic queue that drops its oldest copies when full, so that it never refuses.

    A tap that refuses would stall at-least-once dead-lettering
    (rabbit_fifo_dlx_worker.erl 4.3.5). Before 4.0 a stream would miss what classic queues
    dead-letter and drop x-death.
    """
    arguments = Arguments(
        {
            "x-queue-type": "classic",
            "x-max-length-bytes": TAP_BYTES,
            "x-overflow": "drop-head",
        }
    )
    bindings = (Binding(tap.exchange, queue, tap.routing_key) for tap in taps)
    return Definitions.of([Queue(queue, arguments=arguments), *bindings])


def tapped_exchanges(definitions: Definitions) -> frozenset[str]:
    """The exchanges from which a tap of ours can be reached."""
    sources = {b.source for b in definitions.bindings if b.destination.startswith(TAP_PREFIX)}
    while True:
        wider = sources | {b.source for b in definitions.bindings if b.destination in sources}
        if wider == sources:
            return frozenset(sources)
        sources = wider


def lost_without_taps(definitions: Definitions, publish: Publish) -> str:
    """Why no queue but a tap of ours can have taken it; "" when a real one can.

    The broker confirms what a tap alone takes, so a confirm at a tapped exchange does not say
    that the message arrived anywhere.
    """
    walked = walk(
        definitions.without_taps(),
        publish.exchange,
        publish.routing_key,
        headers=publish.properties.headers,
    )
    return "" if walked.is_routed else walked.outcomes[0].why
