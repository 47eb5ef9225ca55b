"""Retry pair: two direct exchanges and two queues, each queue the other's dead-letter exchange.

Mechanism: `<name>` holds the work. A message rejected there (requeue=false) goes to the
exchange `<name>-retry` and waits in its queue until the TTL runs out; it then dies back to
`<name>`. A message published to `<name>-retry` arrives in `<name>` after that TTL: a delay.
Guarantee: never before the TTL; dead-lettering between classic queues is at most once.
Cost: one hop, about a millisecond, and one queue per delay.
Hazard: nobody counts the rounds but the consumer, by the x-death count of `rejected`.
Source: seed 004 (F. Engelhardt, "Delayed requeuing with RabbitMQ"). Both bindings carry the
same key, because no x-dead-letter-routing-key is set and a message keeps its key when it
dies: with each queue's own name as key a rejected message is lost (tried, 3.10.8-4.3.6).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from topology.deaths import newest_death, read_history
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.delays import DelayError, format_delay, milliseconds, parse_delay
from topology.message import Route, Waiter
from topology.patterns.names import name_problem
from topology.patterns.pattern import (
    Copy,
    Explanation,
    Field,
    ParamsError,
    Reading,
    Tap,
    Use,
    bindings_among,
)

KIND = "retry_pair"
DEFAULT_DELAY = timedelta(milliseconds=300_000)
MAXIMUM_DELAY = timedelta(milliseconds=315_360_000_000)
MAXIMUM_NAME_BYTES = 255 - len("-retry")

EXPLANATION = Explanation(
    title="Retry pair",
    summary="A work queue whose rejected messages come back after a fixed time.",
    mechanism=(
        "A consumer rejects a message without requeueing. It dies into the retry exchange, "
        "waits in the retry queue until its time runs out, and dies back into the work "
        "exchange. Publishing straight to the retry exchange delays a new message by the "
        "same time."
    ),
    guarantee=(
        "Never earlier than the delay. Between classic queues a message dies at most once: "
        "one that dies while its target is missing is lost."
    ),
    cost="One extra queue and one hop of about a millisecond per round.",
    hazards=(
        "Nothing limits the rounds. The consumer must read the count of x-death and give up.",
        "The delay is fixed when the queue is declared: another delay needs another pair.",
        "A key that is not the binding's key is not routed and the message is lost.",
    ),
    source="F. Engelhardt, “Delayed requeuing with RabbitMQ”",
)


FIELDS = (
    Field("name", "Name", "Of the work exchange and queue; the retry side adds “-retry”."),
    Field("delay", "Delay", "How long a message waits: 90s, 5m, 1h30m or 250ms.", initial="5m"),
    Field(
        "routing_key",
        "Routing key",
        "Of both bindings. Empty: the name. Messages with another key are lost.",
        required=False,
    ),
)


@dataclass(frozen=True)
class Params:
    """`name` of the work exchange and queue; `delay` on the retry side; the bindings' key."""

    name: str
    delay: timedelta = DEFAULT_DELAY
    routing_key: str = field(default="")

    def __post_init__(self) -> None:
        if not self.routing_key:
            object.__setattr__(self, "routing_key", self.name)
        problems = {}
        if wrong := _name_problem(self.name):
            problems["name"] = wrong
        if len(self.routing_key.encode()) > 255:
            problems["routing_key"] = "A routing key has at most 255 bytes."
        if self.delay < timedelta(milliseconds=1):
            problems["delay"] = "The delay must be at least 1 ms."
        elif self.delay > MAXIMUM_DELAY:
            problems["delay"] = "RabbitMQ takes no delay over 3650 days."
        if problems:
            raise ParamsError(problems)


def title(params: Params) -> str:
    return params.name


def work_name(params: Params) -> str:
    return params.name


def retry_name(params: Params) -> str:
    return f"{params.name}-retry"


def parse(values: Mapping[str, str]) -> Params:
    try:
        delay = parse_delay(values.get("delay") or format_delay(DEFAULT_DELAY))
    except DelayError as error:
        raise ParamsError({"delay": str(error)}) from error
    return Params(
        name=values.get("name", ""),
        delay=delay,
        routing_key=values.get("routing_key", ""),
    )


def store(params: Params) -> dict[str, str]:
    return {
        "name": params.name,
        "delay": format_delay(params.delay),
        "routing_key": params.routing_key,
    }


def obstacle(params: Params, version: tuple[int, ...], exchange_types: Collection[str]) -> str:
    return ""


def definitions(params: Params) -> Definitions:
    work, retry = work_name(params), retry_name(params)
    return Definitions.of(
        [
            Exchange(work),
            Exchange(retry),
            Queue(work, arguments=_arguments(retry)),
            Queue(retry, arguments=_arguments(work, milliseconds(params.delay))),
            Binding(work, work, params.routing_key),
            Binding(retry, retry, params.routing_key),
        ]
    )


def route(params: Params, delay: timedelta, target: str) -> Route:
    """Zero goes straight to the work exchange, anything else through the retry side."""
    exchange = retry_name(params) if delay > timedelta(0) else work_name(params)
    return Route(exchange=exchange, routing_key=params.routing_key)


def achievable(params: Params, delay: timedelta) -> timedelta:
    return params.delay if delay > timedelta(0) else timedelta(0)


def waits(params: Params, delay: timedelta) -> Sequence[timedelta]:
    return [achievable(params, delay)] if delay > timedelta(0) else []


def delays(params: Params) -> Sequence[timedelta]:
    return (params.delay,)


def longest(params: Params) -> timedelta:
    return params.delay


def targets(params: Params) -> Sequence[str]:
    return (work_name(params),)


def destinations(params: Params, found: Definitions) -> None:
    """Work arrives in its own queue only."""


def members(params: Params, found: Definitions) -> Sequence[Queue]:
    return ()


def target_problem(params: Params, target: str, found: Definitions) -> str:
    if target in targets(params):
        return ""
    return f"Delayed messages of this pair go to {work_name(params)} and nowhere else."


def probes(params: Params, found: Definitions) -> Sequence[tuple[timedelta, str, str]]:
    work = work_name(params)
    return ((params.delay, work, work),)


def remarks(params: Params, found: Definitions) -> Sequence[str]:
    return ()


def read(params: Params, copy: Copy) -> Reading | None:
    """A copy on the retry exchange is an entry, one on the work exchange an exit or a publish.

    The x-death count of `expired` in the retry queue numbers the trips: n before the entry
    of trip n + 1, n on the exit of trip n.
    """
    work, retry = work_name(params), retry_name(params)
    if copy.exchange not in (work, retry) or copy.routing_key != params.routing_key:
        return None
    trips = read_history(copy.headers).count(retry, "expired")
    last = newest_death(copy.headers)
    if copy.exchange == retry:
        queue, reason = last if last and last[0] != retry else ("", "")
        return Reading("entry", work, retry, params.delay, trips + 1, queue, reason)
    if last == (retry, "expired"):
        return Reading("exit", work, work, params.delay, trips, retry, "expired")
    return Reading("publish", work, work, timedelta(0), 0)


def taps(params: Params) -> Sequence[Tap]:
    return (
        Tap(retry_name(params), params.routing_key, "what enters the delay", "entry"),
        Tap(work_name(params), params.routing_key, "what arrives for work", "exit"),
    )


def waiters(params: Params) -> Sequence[Waiter]:
    return ()


def consumer_example(params: Params) -> str:
    return (
        f"queue = {json.dumps(work_name(params), ensure_ascii=False)}\n"
        "for method, properties, body in channel.consume(queue):\n"
        '    deaths = (properties.headers or {}).get("x-death", [])\n'
        '    failures = sum(d["count"] for d in deaths if d["reason"] == "rejected")\n'
        "    if work(body):\n"
        "        channel.basic_ack(method.delivery_tag)\n"
        "    elif failures < 3:\n"
        "        channel.basic_reject(method.delivery_tag, requeue=False)\n"
        "    else:\n"
        "        give_up(properties, body)\n"
        "        channel.basic_ack(method.delivery_tag)\n"
    )


def recognize(found: Definitions) -> Sequence[Use]:
    """Two queues, each with the exchange that feeds the other as its dead-letter exchange.

    The retry side has a TTL, the work side has none; names do not matter to find one, but
    only `<name>` and `<name>-retry` give parameters that rebuild it.
    """
    uses = []
    for retry in sorted(found.queues, key=lambda queue: queue.name):
        for work in _returns_to(found, retry):
            if work.message_ttl_ms is None and retry in _returns_to(found, work):
                uses.append(_use(found, work, retry))
    return [use for use in uses if use is not None]


def _use(found: Definitions, work: Queue, retry: Queue) -> Use | None:
    leaving = bindings_among(found, retry.dead_letter_exchange or "")
    own = [b for b in leaving if b.destination_is_queue and b.destination == work.name]
    if not own or retry.name != f"{work.name}-retry" or retry.message_ttl_ms is None:
        return None
    try:
        params = Params(work.name, timedelta(milliseconds=retry.message_ttl_ms), own[0].routing_key)
    except ParamsError:
        return None
    wanted = frozenset(thing.identity for thing in definitions(params))
    return Use(KIND, work.name, params, wanted & {thing.identity for thing in found})


def _returns_to(found: Definitions, queue: Queue) -> list[Queue]:
    """The queues that a message dying in `queue` with any key may reach in one hop."""
    if not queue.dead_letter_exchange or queue.type not in ("classic", "quorum"):
        return []
    names = {
        binding.destination
        for binding in bindings_among(found, queue.dead_letter_exchange)
        if binding.destination_is_queue
    }
    return [other for name in sorted(names) if (other := found.queue(name))]


def _arguments(dead_letter_exchange: str, ttl_ms: int | None = None) -> Arguments:
    stated: dict[str, str | int] = {
        "x-queue-type": "classic",
        "x-dead-letter-exchange": dead_letter_exchange,
    }
    if ttl_ms is not None:
        stated["x-message-ttl"] = ttl_ms
    return Arguments(stated)


def _name_problem(name: str) -> str:
    if len(name.encode()) > MAXIMUM_NAME_BYTES:
        return f"A name has at most {MAXIMUM_NAME_BYTES} bytes, so that “-retry” still fits."
    return name_problem(name, MAXIMUM_NAME_BYTES)


EXAMPLE = Params("orders")
