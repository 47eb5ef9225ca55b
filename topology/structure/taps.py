"""Where copies of a chain's messages can be taken, and what else observes them: pure."""

from __future__ import annotations

from collections.abc import Sequence

from topology.routing.walk import stores_stuck_messages
from topology.structure.chain import Chain, bindings_into
from topology.structure.copies import Tap


def place_taps(chain: Chain) -> Sequence[Tap]:
    """Beside the bindings into delay queues, and beside those of destinations at exits.

    Behind a queue that dead-letters at least once no tap is bound: alone at the exchange it would
    let the queue drop what it must keep (tried: 3 of 3 kept without a tap, none with one).
    """
    if chain.is_native:
        return ()
    taps = {
        Tap(entry.exchange, entry.routing_key, "entry", entry.arguments): None
        for entry in chain.entries
        if entry.exchange
    }
    entered = {tap.exchange for tap in taps}
    if not any(stores_stuck_messages(chain.queue(name)) for name in chain.queues):
        for exit in chain.exits:
            taps |= {
                Tap(one.source, one.routing_key, "exit", one.arguments): None
                for name in chain.destinations
                for one in bindings_into(chain.definitions, name)
                if one.source == exit.exchange and one.source not in entered
            }
    return tuple(taps)


def describe_observation(chain: Chain) -> Sequence[str]:
    """What taps cannot see of it, and the switch that would observe more: one sentence each."""
    if chain.is_native:
        return (
            "RabbitMQ keeps failed messages in the queue itself, so no copy of them can be taken.",
        )
    taps = place_taps(chain)
    by_name = [entry.queue for entry in chain.entries if not entry.exchange]
    sentences = []
    if by_name:
        sentences.append(
            f"No tap observes what is published to “{by_name[0]}” through the default exchange. "
            "Enable the firehose of the virtual host to list these messages."
        )
    if not any(tap.phase == "exit" for tap in taps):
        why = (
            "they pass the default exchange"
            if all(not one.exchange for one in chain.exits)
            else "a tap there could let RabbitMQ drop messages"
        )
        sentences.append(
            f"Deliveries are not observed by a tap, because {why}. Enable the firehose of the "
            "virtual host to measure lateness."
        )
    return sentences
