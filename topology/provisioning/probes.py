"""The probe queue of a topology, and where its probes would arrive: pure."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from topology.definitions import PREDECLARED, Arguments, Definitions, Queue
from topology.message import PROBE_HEADER, Route
from topology.patterns.pattern import Pattern
from topology.routing.walk import walk
from topology.snapshot import Snapshot

# Arguments of a probe queue. It has no limit, so that it never refuses, which would stall
# at-least-once dead-lettering. Probes are sent only while a worker consumes them.
ARGUMENTS = Arguments({"x-queue-type": "classic"})


def probe_definitions(pattern: Pattern, params: Any, probe: str) -> Definitions:
    """The queue of this name and the bindings that lead probes into it."""
    bindings = pattern.probe_bindings(params, probe)
    return Definitions.of([Queue(probe, arguments=ARGUMENTS), *bindings])


def stray_probe(pattern: Pattern, params: Any, probe: str, route: Route, snapshot: Snapshot) -> str:
    """Why a probe on this route would not arrive in the probe queue alone; "" when it would."""
    found = snapshot.definitions.without_taps() | probe_definitions(pattern, params, probe)
    walked = walk(
        found | route.declares,
        route.exchange,
        route.routing_key,
        version=snapshot.version_tuple,
        headers={**route.headers, PROBE_HEADER: probe},
    )
    for outcome in walked.outcomes:
        if outcome.ending != "delivered":
            return f"Probes are not available, because a probe would not arrive: {outcome.why}"
        if outcome.queue != probe:
            return (
                f"Probes are not available, because the queue {outcome.queue} would receive "
                "them too."
            )
    return ""


def find_last_wait(pattern: Pattern, params: Any, probe: str, delay: timedelta) -> str:
    """The queue that a probe leaves last, before it arrives in its own; "" for none."""
    route = pattern.probe_route(params, delay, probe)
    own = probe_definitions(pattern, params, probe)
    found = PREDECLARED | pattern.definitions(params) | own
    walked = walk(
        found | route.declares,
        route.exchange,
        route.routing_key,
        headers={**route.headers, PROBE_HEADER: probe},
    )
    paths = (end.hops for end in walked.delivered if end.queue == probe)
    return next((hops[-2].queue for hops in paths if len(hops) > 1), "")


def shortest_delay(pattern: Pattern, params: Any) -> timedelta:
    """A delay to try the route with."""
    return min(pattern.delays(params), default=timedelta(seconds=1))
