"""The routes through an adopted chain, computed from its objects as they were: pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from topology.definitions import Queue
from topology.message import Route
from topology.patterns.chain.params import Params, chain_of
from topology.routing.matching.index import Index
from topology.routing.outcome import RouteOutcome
from topology.routing.walk import walk
from topology.structure.chain import DELAYED_RETRY, Entry


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
    """Its objects, and the queues where messages arrive."""
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
