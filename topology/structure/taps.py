"""Where copies of a chain's messages can be taken, and what else observes them: pure."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from topology.definitions import Binding
from topology.routing.walk import stores_stuck_messages
from topology.structure.chain import Chain
from topology.structure.copies import Tap
from topology.structure.named_queues import find_templates


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
    """Those that a client declares for each delay and binds by their names: a tap has the keys of
    those that exist."""
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
