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
from topology.patterns.lacking import lacking
from topology.patterns.names import byte_length, key_problem, name_problem, sight_problem
from topology.patterns.odd_names import shown_only
from topology.patterns.pattern import (
    Copy,
    Explanation,
    Field,
    ParamsError,
    Reading,
    Tap,
    Use,
)

KIND = "retry_pair"
DEFAULT_DELAY = timedelta(milliseconds=300_000)
MAXIMUM_DELAY = timedelta(milliseconds=315_360_000_000)
# Of its six things: an exchange that is gone took its binding along.
LEAST_LEFT = 4
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
        if wrong := key_problem(self.routing_key):
            problems["routing_key"] = wrong
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

    The retry side has a TTL, the work side has none; the exchanges' names do not matter to find
    one, but only queues `<name>` and `<name>-retry` give parameters that rebuild it. Where parts
    are gone, what is left has the names too.
    """
    uses = (
        _whole(found, queue) or _partial(found, queue)
        for queue in sorted(found.queues, key=lambda queue: queue.name)
        if queue.name.endswith("-retry")
    )
    return [use for use in uses if use is not None]


def _whole(found: Definitions, retry: Queue) -> Use | None:
    work = found.queue(retry.name.removesuffix("-retry"))
    if work is None or work.message_ttl_ms is not None or not _returns(found, work, retry.name):
        return None
    back = _returns(found, retry, work.name)
    return _use(found, retry, back[0].routing_key) if back else None


def _partial(found: Definitions, retry: Queue) -> Use | None:
    """The work queue is gone, or an exchange, or a binding, but one is left to tell the key."""
    name = retry.name.removesuffix("-retry")
    work = found.queue(name)
    if retry.dead_letter_exchange != name or retry.dead_letter_routing_key is not None:
        return None
    if work and (work.dead_letter_exchange != retry.name or work.message_ttl_ms is not None):
        return None
    left = [*found.leads(name, name), *found.leads(retry.name, retry.name)]
    use = _use(found, retry, left[0].routing_key) if left else None
    return use if use and len(use.claims) >= LEAST_LEFT else None


def _use(found: Definitions, retry: Queue, routing_key: str) -> Use | None:
    if retry.message_ttl_ms is None or retry.type not in ("classic", "quorum"):
        return None
    name = retry.name.removesuffix("-retry")
    try:
        params = Params(name, timedelta(milliseconds=retry.message_ttl_ms), routing_key)
    except ParamsError:
        named = [name, retry.name]
        return shown_only(KIND, name, found, named, named) if sight_problem(name) else None
    wanted = definitions(params)
    claims = frozenset(thing.identity for thing in wanted if found.get(thing.identity))
    return Use(KIND, name, params, claims, lacking(wanted, found))


def _returns(found: Definitions, queue: Queue, to: str) -> Sequence[Binding]:
    """The bindings by which a message that dies in `queue` may come to the other in one hop."""
    if not queue.dead_letter_exchange or queue.type not in ("classic", "quorum"):
        return ()
    return found.leads(queue.dead_letter_exchange, to)


def _arguments(dead_letter_exchange: str, ttl_ms: int | None = None) -> Arguments:
    stated: dict[str, str | int] = {
        "x-queue-type": "classic",
        "x-dead-letter-exchange": dead_letter_exchange,
    }
    if ttl_ms is not None:
        stated["x-message-ttl"] = ttl_ms
    return Arguments(stated)


def _name_problem(name: str) -> str:
    if byte_length(name) > MAXIMUM_NAME_BYTES:
        return f"A name has at most {MAXIMUM_NAME_BYTES} bytes, so that “-retry” still fits."
    return name_problem(name, MAXIMUM_NAME_BYTES)


EXAMPLE = Params("orders")
