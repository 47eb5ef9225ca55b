"""Retry ladder: each retry waits longer than the one before, and the last failure is parked.

Mechanism: a message rejected in the queue `<name>` (requeue=false) dies into the exchange
`<name>-ladder` with the key it came with. `<key>` leads to rung 1 and `<key>.try.k` to rung k+1.
Rung k waits out its TTL and dies back into the exchange `<name>` with the key `<key>.try.k`, so
that the key tells how high the message has climbed. `<key>.try.n` leads to the parking queue.
Any other key, such as that of work published past the exchange, is one that was never tried: the
alternate exchange takes it to rung 1.
Guarantee: never before a rung's TTL, n retries and no more, and what failed n + 1 times is
parked. Dead-lettering between classic queues is at most once.
Cost: one hop of about a millisecond per retry, one queue per rung.
Hazard: a message published with the delay of rung k has skipped the retries below.
Source: rabbitmq.md 1.3, tried on 3.10.8, 4.0.5 and 4.3.6. Both exchanges are direct and their
bindings exact: a topic's `#.try.1` would take the plain key of a ladder whose key ends so, and a
key that holds a `*` or `#`. The work queue is classic: of a quorum one's delivery limit the cycle
rule knows no rejection, and the message would be dropped before it. The plain key has a binding
of its own beside the alternate exchange, which a tap on that key would starve.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

from topology.deaths import newest_death, read_history
from topology.delays import format_delay
from topology.message import Route
from topology.patterns.pattern import Copy, Explanation, ParamsError, Pattern, Reading, Tap
from topology.patterns.retry_ladder import params as parameters
from topology.patterns.retry_ladder import recognize as recognition
from topology.patterns.retry_ladder.params import (
    Params,
    ladder_name,
    read_tried,
    rung_name,
    tried_key,
)

ZERO = timedelta(0)

_EXPLANATION = Explanation(
    title="Retry ladder",
    summary="A work queue whose rejected messages come back after longer and longer times, "
    "until they are parked.",
    mechanism=(
        "A consumer rejects a message without requeueing. It dies into the ladder exchange and "
        "waits on the first rung, then returns to the work exchange with “.try.1” after its key. "
        "Rejected again, that key leads it to the second rung, and so on; from the last it leads "
        "into the parking queue. What came into the work queue with any other key starts on the "
        "first rung too."
    ),
    guarantee=(
        "Never earlier than a rung's delay, one retry for each rung, and parked after the last "
        "one failed, without a line of code in the consumer. Between classic queues a message "
        "dies at most once: one that dies while its target is missing is lost."
    ),
    cost="One extra queue for each rung and one hop of about a millisecond for each retry.",
    hazards=(
        "A retry arrives with another routing key than the first attempt: a consumer that looks "
        "at the key must cut “.try.1” off.",
        "A message published with a rung's delay has climbed that far: when it fails, it goes on "
        "to the next rung.",
        "What is put back (requeue) or left by a consumer that crashes climbs no rung and is "
        "delivered again at once, without an end.",
        "A message's own expiration must not run out on the way: in the work queue it is lost, "
        "since the broker takes its way through the ladder for a ring, and on a rung it comes "
        "back early.",
        "The delays are fixed when the queues are declared: others need another ladder.",
    ),
    source="RabbitMQ documentation, “Dead Letter Exchanges”; tried on 3.10, 4.0 and 4.3",
)


class RetryLadder(Pattern):
    KIND = parameters.KIND
    FIELDS = parameters.FIELDS
    EXPLANATION = _EXPLANATION
    EXAMPLE = Params("orders")
    parse = staticmethod(parameters.parse)
    store = staticmethod(parameters.store)
    definitions = staticmethod(parameters.definitions)
    recognize = staticmethod(recognition.recognize)

    def route(self, params: Params, delay: timedelta, target: str) -> Route:
        """Zero goes straight to the work exchange, anything else to the first rung that waits so
        long.

        Raises ParamsError for a delay over the longest.
        """
        if delay <= ZERO:
            return Route(params.name, tried_key(params, 0))
        return Route(ladder_name(params), tried_key(params, rung_for(params, delay) - 1))

    def achievable(self, params: Params, delay: timedelta) -> timedelta:
        return params.delays[rung_for(params, delay) - 1] if delay > ZERO else ZERO

    def delays(self, params: Params) -> Sequence[timedelta]:
        return sorted(set(params.delays))

    def targets(self, params: Params) -> Sequence[str]:
        return (params.name,)

    def read(self, params: Params, copy: Copy) -> Reading | None:
        """A copy on the ladder is an entry into the rung its key leads to, one at work what it
        left.

        What the alternate exchange passes on keeps the ladder's name and its own key. The x-death
        counts of `expired` in all rungs number the trips. On its way to parking a message enters
        no delay.
        """
        tried = read_tried(params, copy.routing_key)
        last = newest_death(copy.headers)
        rungs = {rung_name(params, rung): rung for rung in params.rungs}
        history = read_history(copy.headers)
        trips = sum(history.count(name, "expired") for name in rungs)
        if copy.exchange in (ladder_name(params), rung_name(params, 1)):
            rung = (tried or 0) + 1 if copy.exchange == ladder_name(params) else 1
            if rung not in params.rungs:
                return None
            died = last if last and last[0] not in rungs else ("", "")
            wait = params.delays[rung - 1]
            return Reading("entry", params.name, rung_name(params, rung), wait, trips + 1, *died)
        if copy.exchange != params.name or tried is None:
            return None
        if tried and last == (rung_name(params, tried), "expired"):
            return Reading("exit", params.name, params.name, params.delays[tried - 1], trips, *last)
        return Reading("publish", params.name, params.name, ZERO, 0)

    def taps(self, params: Params) -> Sequence[Tap]:
        """No tap at the parking key: who waits there waits for a person."""
        ladder, first = ladder_name(params), rung_name(params, 1)
        entries = [
            Tap(ladder, tried_key(params, rung - 1), f"what enters rung {rung}", "entry")
            for rung in params.rungs
        ]
        exits = [
            Tap(params.name, tried_key(params, rung), f"what comes back from rung {rung}", "exit")
            for rung in params.rungs
        ]
        other = Tap(first, "", "what enters rung 1 with another key", "entry")
        return [*entries, other, Tap(params.name, tried_key(params, 0), "new work", "exit"), *exits]

    def consumer_example(self, params: Params) -> str:
        return (
            f"queue = {json.dumps(params.name, ensure_ascii=False)}\n"
            "for method, properties, body in channel.consume(queue):\n"
            "    if work(body):\n"
            "        channel.basic_ack(method.delivery_tag)\n"
            "    else:  # the broker counts: it comes back later, or is parked\n"
            "        channel.basic_reject(method.delivery_tag, requeue=False)\n"
        )


retry_ladder = RetryLadder()


def rung_for(params: Params, delay: timedelta) -> int:
    """The lowest rung that waits at least so long. Raises ParamsError when none does."""
    for rung, wait in enumerate(params.delays, start=1):
        if wait >= delay:
            return rung
    longest = format_delay(max(params.delays))
    raise ParamsError({"delay": f"The longest delay of this ladder is {longest}."})
