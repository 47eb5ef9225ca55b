"""A chain of others that was adopted: its delays, routes and copies are read from structure.

It provisions nothing. Its two kinds differ in what its messages are: new ones, which are listed
under Scheduled, or failed ones, which are listed under Retrying.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from topology.content.text import make_printable
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.delays import format_delay
from topology.message import Route
from topology.patterns.chain import params as parameters
from topology.patterns.chain.params import Params, chain_of
from topology.patterns.chain.routes import (
    bind_probe,
    describe_obstacle,
    describe_probe_obstacle,
    find_probe_route,
    list_routes,
    trace,
)
from topology.patterns.pattern import Code, ParamsError, Pattern, write_code
from topology.patterns.texts import refuse
from topology.structure.chain import Chain
from topology.structure.named_queues import find_templates

# Routes, and characters of a line, that are shown; more routes say nothing more.
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
