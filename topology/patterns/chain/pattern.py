"""A chain of others that was adopted: its delays, routes and copies are read from structure.

It provisions nothing. Routes are computed from its objects as they were, those of probes where
messages keep the key that they are published with: a probe enters a delay queue by a header, from
an exchange that every vhost has and that nobody else need use so, and leaves it as real messages
do. Its key is the name of its queue.

Its two kinds differ in what its messages are: new ones, which are listed
under Scheduled, or failed ones, which are listed under Retrying.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import Any

from topology.content.text import make_printable
from topology.definitions import (
    PREDECLARED,
    PROBE_PREFIX,
    Arguments,
    Binding,
    Definitions,
    Exchange,
    Queue,
)
from topology.delays import format_delay
from topology.message import PROBE_HEADER, Route
from topology.patterns.chain import params as parameters
from topology.patterns.chain.params import Params, chain_of
from topology.patterns.pattern import Code, ParamsError, Pattern, write_code
from topology.patterns.texts import refuse
from topology.routing.matching.index import Index
from topology.routing.outcome import RouteOutcome
from topology.routing.walk import walk
from topology.structure.chain import DELAYED_RETRY, Chain, Entry
from topology.structure.named_queues import find_templates

# Most routes that are shown, and most characters of a line.
MOST_EXAMPLES, LONGEST_LINE = 5, 1000
_ZERO = timedelta(0)
_OBJECTS = Definitions.of(
    [
        Exchange("orders-delay"),
        Queue(
            "orders-wait",
            arguments=Arguments(
                {
                    "x-message-ttl": 60_000,
                    "x-dead-letter-exchange": "",
                    "x-dead-letter-routing-key": "orders",
                }
            ),
        ),
        Queue("orders"),
        Binding("orders-delay", "orders-wait", "orders"),
    ]
)
_ENTRY = "amq.headers"
# Header of a probe with the delay queue that it enters.
_THROUGH = "delayboard-probe-through"
_ANY = PROBE_PREFIX + "0"


class DelayChain(Pattern, parts=(parameters,)):
    KIND = "delay_chain"
    EXAMPLE = Params("orders", ("orders-wait",), _OBJECTS, _OBJECTS)
    CHANGE_OBSTACLE = ""
    OFFERS_MIGRATION = True
    chain = staticmethod(chain_of)

    def title(self, params: Params) -> str:
        return params.name

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        """The route through the entry whose path takes this long, else into its delay queue by
        name.
        """
        refuse({"target": self.target_problem(params, target, Definitions())})
        if delay <= _ZERO:
            return Route("", target)
        for route, end in list_routes(params):
            if (end.queue, end.after) == (target, delay):
                return route
        waiting = chain_of(params).waiting
        queue = next((one for one in waiting if one.message_ttl == delay), waiting[0])
        why = (
            f"no route brings a message to “{target}” after exactly this delay."
            if any(end.queue == target for _, end in list_routes(params))
            else describe_obstacle(params, queue)
        )
        raise ParamsError({"delay": f"Delayboard cannot publish with this delay, because {why}"})

    def achievable(self, params: Params, delay: timedelta) -> timedelta:
        return max(_ZERO, delay)

    def delays(self, params: Params) -> Sequence[timedelta]:
        """The delays of the routes, and of queues of which one alone is passed; zero alone where
        there are none.
        """
        chain = chain_of(params)
        linked = {name for pair in chain.links for name in pair}
        found = {chain.queue(name).message_ttl for name in chain.queues if name not in linked}
        found |= {end.after for _, end in list_routes(params)}
        return tuple(sorted(ttl for ttl in found if ttl)) or (_ZERO,)

    def describe_no_delay(self, params: Params) -> str:
        if chain_of(params).is_native:
            return super().describe_no_delay(params)
        return "as each message states"

    def longest(self, params: Params) -> timedelta:
        """The sum of its queues where one trip may pass several."""
        chain = chain_of(params)
        return sum(chain.delays, _ZERO) if chain.links else max(chain.delays, default=_ZERO)

    def targets(self, params: Params) -> Sequence[str]:
        return chain_of(params).destinations

    def members(self, params: Params, found: Definitions) -> Sequence[Queue]:
        """What the client declared for other delays since it was adopted."""
        known = set(params.queues)
        templates = find_templates(chain_of(params))
        return [
            queue
            for queue in (found.queues if templates else ())
            if queue.name not in known and any(one.fits(queue) for one in templates)
        ]

    def delay_queues(self, params: Params, found: Iterable[Queue]) -> list[Queue]:
        """Some have no TTL, and a work queue of it may have one."""
        if chain_of(params).is_native:
            return []
        there = list(found)
        new = set(self.members(params, Definitions.of(there)))
        return [queue for queue in there if queue.name in params.queues or queue in new]

    def target_problem(self, params: Params, target: str, found: Definitions) -> str:
        ends = chain_of(params).destinations
        if not ends:
            return "No queue receives the messages of this topology."
        if target not in ends:
            return f"Messages of this topology go to {', '.join(ends[:5])}. Enter one of them."
        return ""

    def change_obstacle(self, params: Params) -> str:
        held_by = chain_of(params).held_by
        if held_by:
            return (
                f"The workers of {held_by} hold waiting messages in their memory, where Delayboard "
                "cannot change them."
            )
        return ""

    def is_held(self, params: Params) -> bool:
        return bool(chain_of(params).held_by)

    def exit_of(self, params: Params, destination: str) -> tuple[str, str]:
        """The exit of the first delay queue from which the destination is reached."""
        chain = chain_of(params)
        return next(
            (
                (one.exchange, key)
                for one in chain.exits
                for key in (one.routing_key, *_keys_of(chain, one.queue))
                if key is not None and _reaches(params, one.exchange, key, destination)
            ),
            ("", destination),
        )

    def trials(self, params: Params, found: Definitions) -> Sequence[tuple[timedelta, str, str]]:
        return sorted({(end.after, end.queue, end.queue) for _, end in list_routes(params)})

    def untried(self, params: Params, found: Definitions) -> Sequence[str]:
        """Each delay queue that no message is known to pass by one of its entries."""
        known = {(route.exchange, route.routing_key) for route, _ in list_routes(params)}
        chain = chain_of(params)
        tried = {one.queue for one in chain.entries if (one.exchange, one.routing_key) in known}
        return [
            f"No route was traced, because {describe_obstacle(params, queue)}"
            for queue in chain.waiting
            if queue.name not in tried
        ]

    def probe_obstacle(self, params: Params, found: Definitions) -> str:
        return describe_probe_obstacle(params, self.delays(params))

    def probe_bindings(self, params: Params, probe: str) -> Sequence[Binding]:
        return bind_probe(params, probe)

    def probe_route(self, params: Params, delay: timedelta, probe: str) -> Route:
        return find_probe_route(params, delay, probe)

    def remarks(self, params: Params, found: Definitions) -> Sequence[str]:
        return (chain_of(params).phrase,)

    def consumer_example(self, params: Params) -> str:
        held_by = chain_of(params).held_by
        if held_by:
            return (
                f"# The due time is in the body, as {held_by} writes it: publish by the library.\n"
                "actor.send_with_options(args=(order,), delay=60_000)\n"
            )
        return super().consumer_example(params)

    def code_values(self, params: Params) -> Mapping[str, Any]:
        # The first to each end: by an exchange, where one is passed.
        routes = {(end.after, end.queue): route for route, end in reversed(list_routes(params))}
        lines = [
            f"channel.basic_publish({write_code(route.exchange)}, {write_code(route.routing_key)}, "
            f"body, properties)  # arrives in {queue} after {format_delay(delay)}"
            for (delay, queue), route in sorted(routes.items(), key=lambda one: one[0])
            if not route.headers
        ]
        waits = next(iter(chain_of(params).waiting), None)
        if (
            not lines
            and waits is not None
            and waits.message_ttl_ms is None
            and not chain_of(params).is_native
        ):
            lines = [
                'properties.expiration = "60000"  # milliseconds',
                f'channel.basic_publish("", {write_code(waits.name)}, body, properties)',
            ]
        if not lines and waits is not None:
            lines = [f"# None is known, because {describe_obstacle(params, waits)}"]
        return {
            "publish": Code(
                "\n".join(make_printable(one, LONGEST_LINE) for one in lines[:MOST_EXAMPLES])
            )
        }


class RetryChain(DelayChain):
    KIND = "retry_chain"
    ATTEMPTS_COUNTED_BY = "x-death"
    EXPLANATION = replace(
        DelayChain.EXPLANATION,
        title="Retry chain",
        summary="Retry queues that others declared, in a shape that is no pattern of Delayboard.",
    )


delay_chain, retry_chain = DelayChain(), RetryChain()


def _reaches(params: Params, exchange: str, key: str, queue: str) -> bool:
    outcomes = trace(params, Route(exchange, key))
    return any(one.queue == queue and len(one.hops) == 1 for one in outcomes)


def _keys_of(chain: Chain, queue: str) -> Sequence[str]:
    return [entry.routing_key for entry in chain.entries if entry.queue == queue]


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
