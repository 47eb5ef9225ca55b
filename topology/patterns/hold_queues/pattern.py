"""Hold queues: a queue for each delay and destination, declared when it is used.

The publisher declares the durable queue `delay.<ms>.<exchange>.<routing key>`, whose TTL is the
delay and whose dead-letter exchange and key are the destination. RabbitMQ deletes an expired queue
with its messages, so the lease must outlast the TTL: x-expires is max(2 x ms, ms + 60 s), and each
publish declares again on the same channel, because only that renews the lease (never nowait). In a
quorum queue a declare renews nothing, and its messages are deleted (tried, 3.10.8 to 4.3.6).
Source: seed 000 ("Delayed message delivery in RabbitMQ").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from topology.deaths import newest_death
from topology.definitions import (
    MAXIMUM_TTL_MS,
    Arguments,
    Binding,
    Definitions,
    Queue,
    is_own_queue,
)
from topology.message import PROBE_HEADER, Route
from topology.patterns.hold_queues import params as parameters
from topology.patterns.hold_queues.params import (
    SHORTEST_LEASE_MS,
    Params,
    delay_problem,
    expires_ms,
    hold_queue,
    is_held_for,
    is_own,
)
from topology.patterns.names import LONGEST_NAME_BYTES, byte_length
from topology.patterns.pattern import MADE_UP, Code, ParamsError, Pattern, refuse_unless_offered
from topology.structure.copies import Copy, Reading, Tap

PROBE_DELAY = timedelta(minutes=1)
# Types of exchanges that can keep a key or a header apart from all others.
ROUTES_APART = ("direct", "topic", "headers")


class HoldQueues(Pattern, parts=(parameters,)):
    EXAMPLE = Params("orders", ("created",), (timedelta(seconds=30), timedelta(minutes=5)))
    CHANGE_OBSTACLE = ""
    OFFERS_MIGRATION = True

    def title(self, params: Params) -> str:
        return params.exchange or "(default exchange)"

    def list_missing(self, params: Params, found: Definitions) -> tuple[str, ...]:
        return tuple(
            f"The arguments of “{queue.name}” differ from the others."
            for queue in self.members(params, found)
            if not is_own(params, queue)
        )

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        """Zero goes straight to the destination, anything else into its hold queue."""
        if params.keys and target not in params.keys:
            raise ParamsError({"target": f"The available keys are {', '.join(params.keys)}."})
        if delay <= timedelta(0):
            return Route(params.exchange, target)
        if params.delays:
            refuse_unless_offered(delay, params.delays)
        if wrong := delay_problem(params, delay):
            raise ParamsError({"delay": wrong})
        queue = hold_queue(params, delay, target)
        if byte_length(queue.name) > LONGEST_NAME_BYTES:
            raise ParamsError(
                {
                    "target": (
                        f"The name of the hold queue “{queue.name}” exceeds 255 bytes. Use a "
                        "shorter exchange or key."
                    )
                }
            )
        unused = timedelta(milliseconds=expires_ms(params, delay)) - delay
        return Route("", queue.name, declares=Definitions.of([queue]), lease=unused / 2)

    def delays(self, params: Params) -> Sequence[timedelta]:
        return params.delays

    def longest(self, params: Params) -> timedelta:
        if params.delays:
            return params.delays[-1]
        return timedelta(milliseconds=MAXIMUM_TTL_MS) / 2

    def exit_of(self, params: Params, destination: str) -> tuple[str, str]:
        return params.exchange, destination

    def targets(self, params: Params) -> Sequence[str]:
        return params.keys

    def target_problem(self, params: Params, target: str, found: Definitions) -> str:
        if is_own_queue(target):
            return "Delayboard uses this queue itself. Enter another destination."
        if params.exchange and found.exchange(params.exchange) is None:
            return (
                f"The exchange “{params.exchange}” does not exist, so RabbitMQ would drop the "
                "message after its delay. Create the exchange first."
            )
        return ""

    def trials(self, params: Params, found: Definitions) -> Sequence[tuple[timedelta, str, str]]:
        """Each delay with each key on offer; the queues behind the exchange are anybody's,
        hence ""."""
        keys = params.keys or ((MADE_UP,) if not params.exchange else ())
        ending = {key: "" if params.exchange else key for key in keys}
        return [
            (delay, key, ending[key]) for key in keys for delay in (params.delays or (PROBE_DELAY,))
        ]

    def probe_obstacle(self, params: Params, found: Definitions) -> str:
        exchange = found.exchange(params.exchange)
        if not params.exchange or (exchange and exchange.type in ROUTES_APART):
            return ""
        if exchange is None:
            return (
                f"Probes are not available, because the exchange “{params.exchange}” does not "
                "exist."
            )
        return (
            f"Probes are not available, because the {exchange.type} exchange “{exchange.name}” "
            "would route them to real queues too."
        )

    def probe_bindings(self, params: Params, probe: str) -> Sequence[Binding]:
        """Bindings for probes by key and header: a headers exchange matches the header alone,
        others the key alone.

        The default exchange needs none.
        """
        matched = Arguments({"x-match": "all", PROBE_HEADER: probe})
        return (
            [Binding(params.exchange, probe, probe, arguments=matched)] if params.exchange else []
        )

    def probe_route(self, params: Params, delay: timedelta, probe: str) -> Route:
        """The route of a probe through a hold queue of its own: each pair of delay and key has
        one.
        """
        return self.route(replace(params, keys=()), delay, probe)

    def remarks(self, params: Params, found: Definitions) -> Sequence[str]:
        sentences = []
        if params.exchange and found.exchange(params.exchange) is None:
            sentences.append(f"The destination exchange “{params.exchange}” does not exist.")
        named = [queue for queue in found.queues if _split_name(params, queue.name)]
        others = [queue for queue in named if not is_held_for(params.exchange, queue)]
        sentences.extend(
            _explain_collision(params, queue)
            for queue in sorted(others, key=lambda queue: queue.name)
        )
        exchange = found.exchange(params.exchange)
        if not params.exchange:
            sentences.append(
                "A tap cannot record this topology, because no tap observes the default exchange."
            )
        elif not params.keys and exchange is not None and exchange.type == "direct":
            sentences.append(
                "A tap cannot record this topology. A direct exchange copies only messages "
                "with an available key, and the topology defines none."
            )
        else:
            sentences.append(
                "Entries are not observed, because no tap observes the default exchange. "
                "Deliveries are observed."
            )
        return sentences

    def members(self, params: Params, found: Definitions) -> Sequence[Queue]:
        """The hold queues of this namespace that exist in the vhost, the shortest delay first."""
        dying = found.dying_into(params.exchange)
        own = [queue for queue in dying if is_held_for(params.exchange, queue)]
        return sorted(own, key=lambda queue: (queue.message_ttl_ms or 0, queue.name))

    def read(self, params: Params, copy: Copy) -> Reading | None:
        """A copy at the destination exchange left a hold queue, or was published without a delay.

        The hold queue's name contains the delay; at the default exchange it is the routing key.
        """
        if copy.exchange == "" and (named := _split_name(params, copy.routing_key)):
            trips = copy.history.count(copy.routing_key, "expired")
            return Reading("entry", named[1], copy.routing_key, named[0], trips + 1)
        if copy.exchange != params.exchange:
            return None
        last = newest_death(copy.headers)
        if last and last[1] == "expired" and (named := _split_name(params, last[0])):
            trips = copy.history.count(*last)
            return Reading("exit", copy.routing_key, last[0], named[0], trips, *last)
        queue, reason = last or ("", "")
        return Reading("publish", copy.routing_key, "", timedelta(0), 0, queue, reason)

    def taps(self, params: Params) -> Sequence[Tap]:
        if not params.exchange:
            return ()
        keys = params.keys or ("#",)
        return [Tap(params.exchange, key, "exit") for key in keys]

    def code_values(self, params: Params) -> Mapping[str, Any]:
        lease = "2 * ms" if params.lease == "double" else f"max(2 * ms, ms + {SHORTEST_LEASE_MS})"
        return {"exchange": params.exchange, "lease": Code(lease)}


hold_queues = HoldQueues()


def _split_name(params: Params, name: str) -> tuple[timedelta, str] | None:
    match = re.fullmatch(r"delay\.(\d{1,12})\.(.*)", name, re.DOTALL)
    if match is None or not match[2].startswith(f"{params.exchange}."):
        return None
    return timedelta(milliseconds=int(match[1])), match[2].removeprefix(f"{params.exchange}.")


def _explain_collision(params: Params, queue: Queue) -> str:
    exchange, key = queue.dead_letter_exchange, queue.dead_letter_routing_key
    defect = (
        f"delays messages to the exchange “{exchange}” with key “{key or ''}”"
        if exchange is not None
        else "is not a hold queue"
    )
    return (
        f"“{queue.name}” {defect}. This topology cannot use this delay and key, because the name "
        "exists."
    )
