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
from collections.abc import Sequence
from datetime import timedelta

from topology.deaths import newest_death, read_history
from topology.message import Route
from topology.patterns.pattern import Copy, Explanation, Pattern, Reading, Tap
from topology.patterns.retry_pair import params as parameters
from topology.patterns.retry_pair import recognize as recognition
from topology.patterns.retry_pair.params import Params, retry_name, work_name

_EXPLANATION = Explanation(
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


class RetryPair(Pattern):
    KIND = parameters.KIND
    FIELDS = parameters.FIELDS
    EXPLANATION = _EXPLANATION
    EXAMPLE = Params("orders")
    parse = staticmethod(parameters.parse)
    store = staticmethod(parameters.store)
    definitions = staticmethod(parameters.definitions)
    recognize = staticmethod(recognition.recognize)

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        """Zero goes straight to the work exchange, anything else through the retry side."""
        exchange = retry_name(params) if delay > timedelta(0) else work_name(params)
        return Route(exchange=exchange, routing_key=params.routing_key)

    def achievable(self, params: Params, delay: timedelta) -> timedelta:
        return params.delay if delay > timedelta(0) else timedelta(0)

    def delays(self, params: Params) -> Sequence[timedelta]:
        return (params.delay,)

    def targets(self, params: Params) -> Sequence[str]:
        return (work_name(params),)

    def read(self, params: Params, copy: Copy) -> Reading | None:
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

    def taps(self, params: Params) -> Sequence[Tap]:
        return (
            Tap(retry_name(params), params.routing_key, "what enters the delay", "entry"),
            Tap(work_name(params), params.routing_key, "what arrives for work", "exit"),
        )

    def consumer_example(self, params: Params) -> str:
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


retry_pair = RetryPair()
