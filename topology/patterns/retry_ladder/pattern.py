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
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import timedelta

from topology.deaths import newest_death, read_history
from topology.definitions import Arguments, Binding, Definitions, Exchange, Queue
from topology.delays import format_delay, milliseconds
from topology.message import Route, Waiter
from topology.patterns.pattern import Copy, Explanation, ParamsError, Reading, Tap, Use
from topology.patterns.retry_ladder.params import FIELDS as FIELDS
from topology.patterns.retry_ladder.params import Params as Params
from topology.patterns.retry_ladder.params import ladder_name, read_tried, rung_name, tried_key
from topology.patterns.retry_ladder.params import parse as parse
from topology.patterns.retry_ladder.params import store as store
from topology.patterns.retry_ladder.sets import LadderSet, find_ladder_sets
from topology.patterns.uses import lacking

KIND = "retry_ladder"
ZERO = timedelta(0)

EXPLANATION = Explanation(
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

EXAMPLE = Params("orders")


def title(params: Params) -> str:
    return params.name


def obstacle(params: Params, version: tuple[int, ...], exchange_types: Collection[str]) -> str:
    return ""


def definitions(params: Params) -> Definitions:
    work, ladder, first = params.name, ladder_name(params), rung_name(params, 1)
    things: list[Exchange | Queue | Binding] = [
        Exchange(work),
        Exchange(ladder, arguments=Arguments({"alternate-exchange": first})),
        Exchange(first, "fanout"),
        Binding(first, first, ""),
        _queue(work, {"x-dead-letter-exchange": ladder}),
        _queue(params.parking, {}),
        Binding(ladder, params.parking, tried_key(params, len(params.delays))),
        Binding(work, work, tried_key(params, 0)),
    ]
    for rung in params.rungs:
        name = rung_name(params, rung)
        things += [
            _queue(name, _rung_arguments(params, rung)),
            Binding(ladder, name, tried_key(params, rung - 1)),
            Binding(work, work, tried_key(params, rung)),
        ]
    return Definitions.of(things)


def route(params: Params, delay: timedelta, target: str) -> Route:
    """Zero goes straight to the work exchange, anything else to the first rung that waits so long.

    Raises ParamsError for a delay over the longest.
    """
    if delay <= ZERO:
        return Route(params.name, tried_key(params, 0))
    return Route(ladder_name(params), tried_key(params, rung_for(params, delay) - 1))


def rung_for(params: Params, delay: timedelta) -> int:
    """The lowest rung that waits at least so long. Raises ParamsError when none does."""
    for rung, wait in enumerate(params.delays, start=1):
        if wait >= delay:
            return rung
    longest_one = format_delay(longest(params))
    raise ParamsError({"delay": f"The longest delay of this ladder is {longest_one}."})


def achievable(params: Params, delay: timedelta) -> timedelta:
    return params.delays[rung_for(params, delay) - 1] if delay > ZERO else ZERO


def waits(params: Params, delay: timedelta) -> Sequence[timedelta]:
    return [achievable(params, delay)] if delay > ZERO else []


def delays(params: Params) -> Sequence[timedelta]:
    return sorted(set(params.delays))


def longest(params: Params) -> timedelta:
    return params.delays[-1]


def targets(params: Params) -> Sequence[str]:
    return (params.name,)


def destinations(params: Params, found: Definitions) -> None:
    """Work arrives in its own queue only."""


def members(params: Params, found: Definitions) -> Sequence[Queue]:
    return ()


def target_problem(params: Params, target: str, found: Definitions) -> str:
    if target == params.name:
        return ""
    return f"Delayed messages of this ladder go to {params.name} and nowhere else."


def probes(params: Params, found: Definitions) -> Sequence[tuple[timedelta, str, str]]:
    return [(delay, params.name, params.name) for delay in delays(params)]


def remarks(params: Params, found: Definitions) -> Sequence[str]:
    return ()


def read(params: Params, copy: Copy) -> Reading | None:
    """A copy on the ladder is an entry into the rung its key leads to, one at work what it left.

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


def taps(params: Params) -> Sequence[Tap]:
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


def waiters(params: Params) -> Sequence[Waiter]:
    return ()


def consumer_example(params: Params) -> str:
    return (
        f"queue = {json.dumps(params.name, ensure_ascii=False)}\n"
        "for method, properties, body in channel.consume(queue):\n"
        "    if work(body):\n"
        "        channel.basic_ack(method.delivery_tag)\n"
        "    else:  # the broker counts: it comes back later, or is parked\n"
        "        channel.basic_reject(method.delivery_tag, requeue=False)\n"
    )


def recognize(found: Definitions) -> Sequence[Use]:
    """Queues that die into one exchange with the keys `<key>.try.1`, `<key>.try.2` and so on.

    Only queues `<name>-rung-1` and so on give parameters that rebuild the ladder; with other
    names, or with a rung between others gone, it is one as long as a work queue dies into it.
    """
    by_name: dict[str, Use] = {}
    uses = (use for ladder in find_ladder_sets(found) if (use := _use(found, ladder)))
    for use in sorted(uses, key=lambda use: use.params is None):
        known = by_name.get(use.name)
        if known is None:
            by_name[use.name] = use
        elif known.params is None:
            by_name[use.name] = _joined(known, use)
    return list(by_name.values())


def _joined(one: Use, other: Use) -> Use:
    """Rungs for several keys of one work queue."""
    missing = (*one.missing, *other.missing)
    return replace(one, claims=one.claims | other.claims, missing=missing)


def _use(found: Definitions, ladder: LadderSet) -> Use | None:
    params = _params_of(ladder)
    if params is None or _is_anothers(found, params):
        return _foreign(found, ladder)
    wanted = definitions(params)
    claims = frozenset(thing.identity for thing in wanted if found.get(thing.identity))
    return Use(KIND, params.name, params, claims, lacking(wanted, found))


def _params_of(ladder: LadderSet) -> Params | None:
    # An empty key would be read as the name.
    if ladder.gaps or not ladder.key:
        return None
    waits = tuple(timedelta(milliseconds=queue.message_ttl_ms or 0) for queue in ladder.rungs)
    try:
        params = Params(ladder.exchange, waits, ladder.key, ladder.parking)
    except ParamsError:
        return None
    named = [rung_name(params, rung) for rung in params.rungs]
    return params if [queue.name for queue in ladder.rungs] == named else None


def _is_anothers(found: Definitions, params: Params) -> bool:
    """Whether the work queue fails into something else than this ladder."""
    work = found.queue(params.name)
    return work is not None and work.dead_letter_exchange != ladder_name(params)


def _foreign(found: Definitions, ladder: LadderSet) -> Use | None:
    if ladder.work is None:
        return None
    missing = tuple(f"The queue of rung {rung} is missing." for rung in ladder.gaps)
    return Use(KIND, ladder.work.name, None, ladder.claims(found), missing)


def _queue(name: str, arguments: dict[str, str | int]) -> Queue:
    return Queue(name, arguments=Arguments({"x-queue-type": "classic", **arguments}))


def _rung_arguments(params: Params, rung: int) -> dict[str, str | int]:
    return {
        "x-message-ttl": milliseconds(params.delays[rung - 1]),
        "x-dead-letter-exchange": params.name,
        "x-dead-letter-routing-key": tried_key(params, rung),
    }
