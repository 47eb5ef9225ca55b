"""Quorum retry: a quorum queue that makes what failed wait before it is delivered again.

Mechanism: RabbitMQ's own, from 4.3 on. A message that comes back to the queue `<name>` waits
inside it: x-delayed-retry-min after the first failure, twice that after the second, and so on up
to x-delayed-retry-max. What failed more than x-delivery-limit times, and what is rejected without
requeueing, dies into the parking queue.
Guarantee: never before the delay; parked at least once: a message that its parking queue cannot
take is kept.
Cost: nothing but the two quorum queues, and no hop.
Hazard: no delay when publishing, nobody sees what waits but in the broker's count, and a nack
(type `returned` or `all`) is never counted, so that it may come back for ever.
Source: rabbit_fifo.erl 4.3.5 and RabbitMQ documentation, "Quorum Queues", tried on 4.3.6. The
parking queue has no delivery limit: the default of 20 would destroy what is looked at too often.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import timedelta

from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.delays import milliseconds
from topology.message import Route, Waiter
from topology.patterns.pattern import Copy, Explanation, ParamsError, Reading, Tap, Use
from topology.patterns.quorum_retry.params import FIELDS as FIELDS
from topology.patterns.quorum_retry.params import KINDS
from topology.patterns.quorum_retry.params import Params as Params
from topology.patterns.quorum_retry.params import parse as parse
from topology.patterns.quorum_retry.params import store as store
from topology.patterns.uses import lacking

KIND = "quorum_retry"
FIRST_VERSION = (4, 3)
ZERO = timedelta(0)
NO_DELAY = (
    "A quorum queue delays only what comes back to it: a message cannot be published with a delay."
)

EXPLANATION = Explanation(
    title="Quorum retry",
    summary="A quorum queue of RabbitMQ 4.3 or later that retries later and later by itself, and "
    "parks what failed too often.",
    mechanism=(
        "A consumer rejects a message and has it requeued, or is lost with it. The queue keeps "
        "the message back: after the first failure for the shortest delay, after the second "
        "twice as long, and so on up to the longest. After the last retry the message dies into "
        "the parking queue."
    ),
    guarantee=(
        "Never earlier than the delay. Both queues are replicated, and a message that cannot be "
        "parked is kept until it can."
    ),
    cost="No queue for each delay and no hop; every message is written to a quorum queue.",
    hazards=(
        "There is no delay when publishing: the only one on offer is none.",
        "What waits is inside the work queue. No tap and no page sees it; the broker counts it "
        "as delayed.",
        "A nack with requeue is no failure: it waits the shortest delay (with “returned” or "
        "“all”), is never counted and never parked.",
        "With “returned” what fails comes back at once, and is parked after the last retry.",
        "A reject without requeue parks at once.",
        "Brokers before 4.3 know nothing of it.",
    ),
    source="RabbitMQ documentation, “Quorum Queues”, delayed retries; rabbit_fifo.erl 4.3.5",
)

EXAMPLE = Params("orders")


def title(params: Params) -> str:
    return params.name


def obstacle(params: Params, version: tuple[int, ...], exchange_types: Collection[str]) -> str:
    """A version that nobody knows is taken for the newest."""
    if not version or version >= FIRST_VERSION:
        return ""
    return (
        f"This broker is RabbitMQ {'.'.join(map(str, version))}, and quorum queues delay retries "
        "from 4.3 on only: use a retry ladder, or a retry pair for a single delay."
    )


def definitions(params: Params) -> Definitions:
    return Definitions.of(
        [
            Exchange(params.name),
            Queue(params.name, arguments=_arguments(params)),
            Queue(
                params.parking,
                arguments=Arguments({"x-queue-type": "quorum", "x-delivery-limit": -1}),
            ),
            Binding(params.name, params.name, params.routing_key),
        ]
    )


def route(params: Params, delay: timedelta, target: str) -> Route:
    """Straight to the work exchange. Raises ParamsError for any delay."""
    if delay > ZERO:
        raise ParamsError({"delay": NO_DELAY})
    return Route(params.name, params.routing_key)


def achievable(params: Params, delay: timedelta) -> timedelta:
    return ZERO


def waits(params: Params, delay: timedelta) -> Sequence[timedelta]:
    return ()


def delays(params: Params) -> Sequence[timedelta]:
    return (ZERO,)


def longest(params: Params) -> timedelta:
    return ZERO


def targets(params: Params) -> Sequence[str]:
    return (params.name,)


def destinations(params: Params, found: Definitions) -> None:
    """Work arrives in its own queue only."""


def members(params: Params, found: Definitions) -> Sequence[Queue]:
    return ()


def target_problem(params: Params, target: str, found: Definitions) -> str:
    if target == params.name:
        return ""
    return f"Messages of this topology go to {params.name} and nowhere else."


def probes(params: Params, found: Definitions) -> Sequence[tuple[timedelta, str, str]]:
    return ((ZERO, params.name, params.name),)


def remarks(params: Params, found: Definitions) -> Sequence[str]:
    return (
        "Only what arrives first is observed: what waits for its next attempt does so inside the "
        "queue, where no tap sees it.",
    )


def read(params: Params, copy: Copy) -> Reading | None:
    """A copy at the work exchange was just published: the broker's retries pass no exchange."""
    if (copy.exchange, copy.routing_key) != (params.name, params.routing_key):
        return None
    return Reading("publish", params.name, params.name, ZERO, 0)


def taps(params: Params) -> Sequence[Tap]:
    return (Tap(params.name, params.routing_key, "what arrives for work", "exit"),)


def waiters(params: Params) -> Sequence[Waiter]:
    return ()


def consumer_example(params: Params) -> str:
    back = (
        "channel.basic_nack(method.delivery_tag)  # waits, but is never parked\n"
        if params.retry == "returned"
        else "channel.basic_reject(method.delivery_tag, requeue=True)  # comes back later\n"
    )
    return (
        f"queue = {json.dumps(params.name, ensure_ascii=False)}\n"
        "for method, properties, body in channel.consume(queue):\n"
        "    if work(body):\n"
        "        channel.basic_ack(method.delivery_tag)\n"
        "    elif is_hopeless(body):\n"
        "        channel.basic_reject(method.delivery_tag, requeue=False)  # parks it now\n"
        "    else:\n"
        f"        {back}"
    )


def recognize(found: Definitions) -> Sequence[Use]:
    """Quorum queues with delayed retries, whatever feeds them.

    One that dead-letters straight into another queue, with a limit and both delays stated, has
    parameters that rebuild it.
    """
    return [_use(found, queue) for queue in sorted(found.queues, key=_name) if _retries(queue)]


def _use(found: Definitions, queue: Queue) -> Use:
    params = _params_of(found, queue)
    if params is None:
        missing = "" if queue.dead_letter_exchange is not None else _UNPARKED.format(queue.name)
        claims = frozenset({queue.identity})
        return Use(KIND, queue.name, None, claims, (missing,) if missing else ())
    wanted = definitions(params)
    claims = frozenset(thing.identity for thing in wanted if found.get(thing.identity))
    return Use(KIND, queue.name, params, claims, lacking(wanted, found))


_UNPARKED = "The queue “{}” dead-letters nowhere: what fails too often is lost."


def _params_of(found: Definitions, queue: Queue) -> Params | None:
    arguments = queue.arguments
    parking = queue.dead_letter_routing_key
    shortest, longest_ms = (arguments.number(f"x-delayed-retry-{end}") for end in ("min", "max"))
    limit = arguments.number("x-delivery-limit")
    if shortest is None or longest_ms is None or limit is None or parking is None:
        return None
    if queue.dead_letter_exchange != "":
        return None
    bound = found.leads(queue.name, queue.name)
    keys = [binding.routing_key for binding in bound if binding.routing_key]
    # An empty key would be read as the name.
    if bound and not keys:
        return None
    try:
        return Params(
            queue.name,
            arguments.text("x-delayed-retry-type") or "",
            timedelta(milliseconds=shortest),
            timedelta(milliseconds=longest_ms),
            limit,
            keys[0] if keys else "",
            parking,
        )
    except (ParamsError, OverflowError):
        return None


def _retries(queue: Queue) -> bool:
    return queue.type == "quorum" and queue.arguments.text("x-delayed-retry-type") in KINDS


def _name(queue: Queue) -> str:
    return queue.name


def _arguments(params: Params) -> Arguments:
    return Arguments(
        {
            "x-queue-type": "quorum",
            "x-delayed-retry-type": params.retry,
            "x-delayed-retry-min": milliseconds(params.shortest),
            "x-delayed-retry-max": milliseconds(params.longest),
            "x-delivery-limit": params.limit,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": params.parking,
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }
    )
