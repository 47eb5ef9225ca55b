"""A chain of others that was adopted: its delays, routes and copies are read from structure.

It provisions nothing. Its two kinds differ in what its messages are: new ones, which are listed
under Scheduled, or failed ones, which are listed under Retrying.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.message import Route
from topology.patterns.chain import params as parameters
from topology.patterns.chain.params import Params, chain_of, reader_of
from topology.patterns.chain.probes import bind_probe, describe_probe_obstacle, find_probe_route
from topology.patterns.chain.routes import describe_obstacle, list_routes, trace
from topology.patterns.pattern import ParamsError, Pattern, Use
from topology.patterns.texts import refuse
from topology.structure.chain import Chain
from topology.structure.copies import Copy, Reading, Tap
from topology.structure.named_queues import find_templates
from topology.structure.taps import describe_observation, place_taps

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

    @staticmethod
    def recognize(found: Definitions) -> Sequence[Use]:
        """None: recognition finds the chains that no pattern explains."""
        return ()

    def title(self, params: Params) -> str:
        return params.name

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        """Through the entry whose way takes this long, else into its delay queue by name."""
        refuse({"target": self.target_problem(params, target, Definitions())})
        if delay <= _ZERO:
            return Route("", target)
        for route, end in list_routes(params):
            if (end.queue, end.after) == (target, delay):
                return route
        offered = self.delays(params)
        raise ParamsError(
            {
                "delay": f"No route of this topology brings a message to “{target}” after exactly "
                "this delay."
                if any(offered)
                else "Delayboard cannot publish into this topology: the time that its messages "
                "wait is no property of a queue alone."
            }
        )

    def achievable(self, params: Params, delay: timedelta) -> timedelta:
        return max(_ZERO, delay)

    def delays(self, params: Params) -> Sequence[timedelta]:
        """Those of its routes, and of queues of which one alone is passed; zero alone where there
        are none."""
        chain = chain_of(params)
        linked = {name for pair in chain.links for name in pair}
        found = {chain.queue(name).message_ttl for name in chain.queues if name not in linked}
        found |= {end.after for _, end in list_routes(params)}
        return tuple(sorted(ttl for ttl in found if ttl)) or (_ZERO,)

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
            for queue in found.queues
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
        """That of the first delay queue from which the destination is reached."""
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
        """Each delay queue that none of its routes passes."""
        passed = {hop.queue for _, end in list_routes(params) for hop in end.hops}
        return [
            f"No route through “{queue.name}” was traced, because "
            + describe_obstacle(params, queue)
            for queue in chain_of(params).waiting
            if queue.name not in passed
        ]

    def probe_obstacle(self, params: Params, found: Definitions) -> str:
        return describe_probe_obstacle(params, self.delays(params))

    def probe_bindings(self, params: Params, probe: str) -> Sequence[Binding]:
        return bind_probe(params, probe)

    def probe_route(self, params: Params, delay: timedelta, probe: str) -> Route:
        return find_probe_route(params, delay, probe)

    def remarks(self, params: Params, found: Definitions) -> Sequence[str]:
        chain = chain_of(params)
        return (chain.phrase, *describe_observation(chain))

    def read(self, params: Params, copy: Copy) -> Reading | None:
        return reader_of(params).read(copy)

    def read_copy(self, params: Params, copy: Copy) -> Reading | None:
        """The route that the copy takes has its expiration."""
        return self.read(params, copy)

    def taps(self, params: Params) -> Sequence[Tap]:
        return place_taps(chain_of(params))

    def consumer_example(self, params: Params) -> str:
        held_by = chain_of(params).held_by
        if held_by:
            return (
                f"# The due time is in the body, as {held_by} writes it: publish by the library.\n"
                "actor.send_with_options(args=(order,), delay=60_000)\n"
            )
        return super().consumer_example(params)

    def code_values(self, params: Params) -> Mapping[str, Any]:
        return {"queue": next(iter(params.queues), params.name)}


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
