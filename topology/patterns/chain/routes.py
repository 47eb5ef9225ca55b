"""The routes through an adopted chain, computed from its objects as they were: pure.

And those of probes, where messages keep the key that they are published with: a probe enters a
delay queue by a header, from an exchange that every vhost has and that nobody else need use so, and
leaves it as real messages do. Its key is the name of its queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache

from topology.definitions import (
    PREDECLARED,
    PROBE_PREFIX,
    Arguments,
    Binding,
    Definitions,
    Queue,
)
from topology.message import PROBE_HEADER, Route
from topology.patterns.chain.params import Params, chain_of
from topology.patterns.pattern import ParamsError
from topology.routing.matching.index import Index
from topology.routing.outcome import RouteOutcome
from topology.routing.walk import walk
from topology.structure.chain import DELAYED_RETRY, Entry

_ENTRY = "amq.headers"
# Header of a probe with the delay queue that it enters.
_THROUGH = "delayboard-probe-through"
_ANY = PROBE_PREFIX + "0"


@lru_cache(maxsize=256)
def list_routes(params: Params) -> Sequence[tuple[Route, RouteOutcome]]:
    """The publishes that one queue alone gets after a delay: by each entry, else into its delay
    queue by name."""
    chain = chain_of(params)
    traced = (
        (route, trace(params, route))
        for entry in chain.entries
        for route in (publish_by(entry), Route("", entry.queue))
    )
    return [
        (route, ends[0])
        for route, ends in traced
        if [one.ending for one in ends] == ["delivered"]
        and ends[0].after
        and ends[0].queue in chain.destinations
    ]


def publish_by(entry: Entry) -> Route:
    headers = {name: value for name, value in entry.arguments.items() if name != "x-match"}
    return Route(entry.exchange, entry.routing_key, headers=headers)


def trace(params: Params, route: Route) -> Sequence[RouteOutcome]:
    index, ends = _index(params)
    return walk(
        index, route.exchange, route.routing_key, headers=route.headers, consumed=ends
    ).outcomes


@lru_cache(maxsize=256)
def _index(params: Params) -> tuple[Index, frozenset[str]]:
    """An index of the objects, and the queues where messages arrive."""
    names = frozenset(queue.name for queue in params.in_force.queues)
    return Index(params.in_force), names - set(params.queues)


def describe_obstacle(params: Params, queue: Queue) -> str:
    """Why no route through this delay queue is known: the end of a sentence, and what helps."""
    chain = chain_of(params)
    if chain.held_by:
        return f"workers of {chain.held_by} hold the messages of “{queue.name}” until they are due."
    if chain.is_native:
        return f"RabbitMQ delays failed messages in “{queue.name}” itself ({DELAYED_RETRY})."
    if queue.message_ttl_ms is None:
        return (
            f"the queue “{queue.name}” has no x-message-ttl, so each message states its own delay. "
            "A queue with a TTL for each delay would have a route."
        )
    entry = next((one for one in chain.entries if one.queue == queue.name), None)
    if entry is None:
        return f"nothing leads into “{queue.name}”."
    ends = trace(params, publish_by(entry))
    if len(ends) > 1:
        return (
            f"messages of “{queue.name}” arrive in {len(ends)} queues. A direct exchange with a "
            "key for each queue would tell them apart."
        )
    kept = (
        f" Messages of “{queue.name}” keep their own routing keys (or CC header), because the "
        "queue has no x-dead-letter-routing-key."
        if queue.dead_letter_routing_key is None
        else ""
    )
    return f"{ends[0].why}.{kept}"


def bind_probe(params: Params, probe: str) -> Sequence[Binding]:
    """Into each delay queue, from one to another, and beside the bindings of real queues.

    They match by key and by header: a headers exchange reads the header alone, others the key.
    """
    chain = chain_of(params)
    kept = {one.queue: one.exchange for one in chain.exits if one.routing_key is None}
    leading_on = {first for first, _ in chain.links}
    ends = [(kept[first], second) for first, second in chain.links if kept.get(first)]
    ends += [(exchange, probe) for name, exchange in kept.items() if name not in leading_on]
    return [
        *(Binding(_ENTRY, name, probe, arguments=_match(probe, {_THROUGH: name})) for name in kept),
        *(
            Binding(exchange, queue, probe, arguments=_match(probe, {}))
            for exchange, queue in dict.fromkeys(ends)
            if exchange
        ),
    ]


def _match(probe: str, headers: Mapping[str, str]) -> Arguments:
    return Arguments({"x-match": "all", PROBE_HEADER: probe, **headers})


def find_probe_route(params: Params, delay: timedelta, probe: str) -> Route:
    """Raises ParamsError where no probe has this delay."""
    found = _list_probe_routes(params, probe).get(delay)
    if found is None:
        raise ParamsError({"delay": describe_probe_obstacle(params, [delay])})
    return found


def describe_probe_obstacle(params: Params, delays: Iterable[timedelta]) -> str:
    """What of the chain keeps probes with one of these delays from a queue of their own, and what
    would help, in a sentence; "" for nothing."""
    possible = _list_probe_routes(params, _ANY)
    missing = [delay for delay in delays if delay not in possible]
    if not missing:
        return ""
    chain = chain_of(params)
    queues = [queue for queue in chain.waiting if queue.message_ttl in missing] or chain.waiting
    return f"Probes are not available, because {_describe_queue(params, queues[0])}."


@lru_cache(maxsize=256)
def _list_probe_routes(params: Params, probe: str) -> Mapping[timedelta, Route]:
    """Delay -> route that brings a probe to its queue alone."""
    chain = chain_of(params)
    if chain.is_native:
        return {}
    own = Definitions.of([Queue(probe), *bind_probe(params, probe)])
    index = Index(PREDECLARED | params.in_force | own)
    found: dict[timedelta, Route] = {}
    for name in chain.queues:
        route = Route(_ENTRY, probe, headers={_THROUGH: name})
        headers = {**route.headers, PROBE_HEADER: probe}
        ends = walk(index, route.exchange, route.routing_key, headers=headers).outcomes
        if [(one.ending, one.queue) for one in ends] == [("delivered", probe)]:
            found.setdefault(ends[0].after, route)
    return found


def _describe_queue(params: Params, queue: Queue) -> str:
    if chain_of(params).is_native:
        return (
            f"RabbitMQ delays failed messages in “{queue.name}” itself ({DELAYED_RETRY}), and only "
            "its consumer can fail one"
        )
    if queue.message_ttl_ms is None:
        return (
            f"the queue “{queue.name}” has no x-message-ttl and each message states its own delay; "
            "a queue with a TTL for each delay could be probed"
        )
    if queue.dead_letter_routing_key is not None:
        return (
            f"the queue “{queue.name}” sends every message to real queues by its "
            f"x-dead-letter-routing-key “{queue.dead_letter_routing_key}”; without this argument "
            "messages keep their own keys"
        )
    return (
        f"the exchange “{queue.dead_letter_exchange}” behind the queue “{queue.name}” routes a "
        "probe to real queues too; a direct or topic exchange would tell them apart"
    )
