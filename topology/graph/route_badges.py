"""What is written on the queues and exchanges of a route: the steps, and where it breaks."""

from __future__ import annotations

from collections.abc import Iterable

from topology.definitions import Definitions, Identity
from topology.delays import format_delay
from topology.routing.outcome import RouteOutcome, Walk

LOST, STUCK, WRONG = "lost here", "stuck here", "problem here"


def route_steps(walked: Walk) -> dict[str, str]:
    """Queue ids -> their number on the route and when the message first comes there."""
    steps: dict[str, str] = {}
    for number, hop in enumerate(sorted(walked.hops, key=lambda hop: hop.after), start=1):
        when = f"after {format_delay(hop.after)}" if hop.after else "at once"
        steps.setdefault(f"queue/{hop.queue}", f"{number}: {when}")
    return steps


def broken_places(
    walked: Walk, there: Definitions, objects: Iterable[Identity] = ()
) -> dict[str, str]:
    """Node ids -> what happens to a message there.

    Where no copy is lost or stuck, they are those of a finding's `objects`.
    """
    found = {}
    for outcome in walked.outcomes:
        if outcome.ending == "stuck":
            found[f"queue/{outcome.queue}"] = STUCK
        elif outcome.ending == "dropped" and outcome.hops:
            found[_place(outcome, there)] = LOST
    return found or dict.fromkeys(map(_node, objects), WRONG)


def _place(outcome: RouteOutcome, there: Definitions) -> str:
    """The exchange that has no queue for the message, else the queue where it ends."""
    name = outcome.hops[-1].queue
    queue = there.queue(name)
    exchange = queue.dead_letter_exchange if queue else None
    if exchange is None or outcome.cause != "no_route":
        return f"queue/{name}"
    return f"exchange/{exchange}"


def _node(identity: Identity) -> str:
    """A binding is marked at its destination."""
    kind, name = identity[2:4] if identity[0] == "binding" else identity[:2]
    return f"{kind}/{name}"
