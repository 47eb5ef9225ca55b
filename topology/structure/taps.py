"""Where copies of messages can be taken, the queue that gets them, and what that changes: pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, TypeAlias

from topology.definitions import Arguments, ArgumentValue, Binding, Definitions, Queue, is_tap
from topology.message import Publish
from topology.routing.walk import stores_stuck_messages, walk
from topology.structure.chain import Chain
from topology.structure.copies import Tap
from topology.structure.named_queues import find_templates

TapType: TypeAlias = Literal["classic", "quorum", "stream"]

DEFAULT_TAP: TapType = "classic"
QUEUE_BYTES = 50_000_000
# Delivery limit of a quorum tap, which no recorder reaches: from 4.0 on the default drops what was
# delivered twenty times, 3.10 refuses -1 (no limit), and -1 lets copies change their order.
QUORUM_DELIVERIES = 1_000_000_000
# Tap type of an adopted topology that is not recorded: nothing of it is in the broker.
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


def place_taps(chain: Chain) -> Sequence[Tap]:
    """Beside the bindings into delay queues, and beside those of destinations at exits.

    None at the entries if one is the default exchange, and none at the exits if one cannot be
    tapped: of a part alone, what is listed would be called complete, and what left unseen overdue.
    The firehose sees all of it then. Behind a queue that dead-letters at least once no tap is
    bound: alone at the exchange it would let the queue drop what it must keep (tried: 3 of 3 kept
    without a tap, none with one).
    """
    if chain.is_native:
        return ()
    is_part = _list_named(chain) or _list_bound_by_name(chain)
    entries = dict.fromkeys(
        Tap(entry.exchange, entry.routing_key, "entry", entry.arguments)
        for entry in (() if is_part else chain.entries)
        if entry.exchange
    )
    return (*entries, *_place_at_exits(chain))


def _place_at_exits(chain: Chain) -> dict[Tap, None]:
    if _keeps_stuck(chain):
        return {}
    entered = {entry.exchange for entry in chain.entries}
    leading_on = {first for first, _ in chain.links}
    destinations = set(chain.destinations)
    taps: dict[Tap, None] = {}
    seen: set[str] = set()
    for exit in chain.exits:
        leaving = () if exit.exchange in entered else chain.definitions.leaving(exit.exchange)
        reached = [(one, _find_queues(chain, one)) for one in leaving]
        if any(not names.isdisjoint(chain.queues) and names & destinations for _, names in reached):
            return {}
        found = [(one, names) for one, names in reached if names & destinations]
        if not found and exit.queue not in leading_on:
            return {}
        for one, names in found:
            taps[Tap(one.source, one.routing_key, "exit", one.arguments)] = None
            seen |= names
    return taps if destinations <= seen else {}


def _find_queues(chain: Chain, binding: Binding) -> AbstractSet[str]:
    """The queues to which it leads, by further exchanges too; not by alternate ones."""
    waiting, seen, queues = [binding], {binding}, set[str]()
    while waiting:
        one = waiting.pop()
        if one.destination_is_queue:
            queues.add(one.destination)
            continue
        further = [b for b in chain.definitions.leaving(one.destination) if b not in seen]
        seen.update(further)
        waiting += further
    return queues


def _keeps_stuck(chain: Chain) -> bool:
    return any(stores_stuck_messages(chain.queue(name)) for name in chain.queues)


def _list_named(chain: Chain) -> Sequence[str]:
    """The delay queues into which messages are published by name, and not only expire."""
    expired_into = {second for _, second in chain.links}
    return [
        entry.queue
        for entry in chain.entries
        if not entry.exchange and (entry.failing or entry.queue not in expired_into)
    ]


def _list_bound_by_name(chain: Chain) -> Sequence[str]:
    """The queues that a client declares for each delay and binds by their names: a tap has the keys
    of those that exist.
    """
    names = {template.queue.name for template in find_templates(chain)}
    return [
        entry.queue
        for entry in chain.entries
        if entry.exchange and entry.routing_key == entry.queue and entry.queue in names
    ]


def describe_observation(chain: Chain) -> Sequence[str]:
    """What taps cannot see of it, and the switch that would observe more: one sentence each."""
    if chain.is_native:
        return (
            "RabbitMQ keeps failed messages in the queue itself, so no copy of them can be taken.",
        )
    sentences = []
    if by_name := _list_named(chain):
        sentences.append(
            f"No tap observes what is published to “{by_name[0]}” through the default exchange. "
            "Enable the firehose of the virtual host to list the messages of this topology."
        )
    elif bound := _list_bound_by_name(chain):
        sentences.append(
            f"The client declares a queue such as “{bound[0]}” for each delay, so no tap observes "
            "them all. Enable the firehose of the virtual host to list the messages of this "
            "topology."
        )
    if not _place_at_exits(chain):
        if _keeps_stuck(chain):
            why = "a tap there could let RabbitMQ drop messages"
        elif any(not one.exchange for one in chain.exits):
            why = "they pass the default exchange"
        else:
            why = "no binding of their exchange is passed by deliveries alone"
        sentences.append(
            f"Deliveries are not observed by a tap, because {why}. Enable the firehose of the "
            "virtual host to measure lateness."
        )
    return sentences


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
