"""The copy of a message that left a chain, made from the route simulation."""

from __future__ import annotations

from topology.definitions import Definitions
from topology.routing.outcome import RouteOutcome
from topology.structure.chain import Chain
from topology.structure.copies import Copy


def leave(chain: Chain, found: Definitions, outcome: RouteOutcome, entry: Copy) -> Copy | None:
    """As a tap behind the chain would see it; None where the route never leaves it."""
    waited = []
    for hop in outcome.hops:
        if hop.queue not in chain.queues or hop.wait is None:
            break
        waited.append(hop)
    if not waited:
        return None
    deaths = [
        {
            "queue": hop.queue,
            "reason": "expired",
            "count": 1,
            "exchange": hop.exchange,
            "routing-keys": [hop.routing_key],
            **({"original-expiration": entry.expiration} if n == 0 and entry.expiration else {}),
        }
        for n, hop in enumerate(waited)
    ]
    last = found.queue(waited[-1].queue)
    assert last is not None
    key = last.dead_letter_routing_key
    # From 4.0 on CC stays, though the queue has a key of its own.
    headers = {**entry.headers, "x-death": deaths[::-1]}
    for which, death in (("first", deaths[0]), ("last", deaths[-1])):
        names = ("queue", "reason", "exchange")
        headers |= {f"x-{which}-death-{name}": death[name] for name in names}
    headers.pop("BCC", None)
    return Copy(
        last.dead_letter_exchange or "", waited[-1].routing_key if key is None else key, headers
    )
