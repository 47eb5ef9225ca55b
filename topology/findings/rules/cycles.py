"""Dead letters that come back to their queue."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator

from topology.definitions import Queue, has_dead_letter_name, show_value
from topology.findings.context import Context, Death, state_unless
from topology.findings.finding import rule
from topology.findings.hit import Admin, Evidence, Hit, name_dead_letter_queue
from topology.findings.rules.dead_letter_routes import LENGTHS
from topology.routing import sentences
from topology.routing.context import delivery_limit
from topology.routing.matching.match import Unknown
from topology.routing.outcome import RouteOutcome
from topology.snapshot import Snapshot

LIMIT = "x-delivery-limit"
# Number of retries with different routing keys from which on a ring counts as endless.
MOST_RETRIES = 100
_WHEN = {
    "expired": "when messages expire",
    "maxlen": "when the queue is full",
    "delivery_limit": "when deliveries fail too often",
}


def _find_dropped(context: Context) -> Iterator[Hit]:
    """Each queue of a ring is reported for its own deaths, not for those of queues before it."""
    for death in context.deaths:
        cut = sentences.cut_cycle(death.queue.name)
        ends = [end for end in death.walk.outcomes if end.cause == "cycle" and end.why == cut]
        if death.reason != "rejected" and ends:
            others = frozenset[Unknown]() if death.walk.delivered else ends[0].others
            unless = state_unless(others | ends[0].unless)
            repair = _remove_cause(context, death, {hop.queue for hop in ends[0].hops})
            yield Hit(_WHEN[death.reason], _cause_of(context, death), repair, unless)


def _remove_cause(context: Context, death: Death, members: Collection[str]) -> tuple[str, ...]:
    """What ends these deaths, so that retries go on: for a TTL, of the queue in the cycle that
    consumers read, else of the one where messages wait longest; the others are its delays."""
    one = death.queue
    if death.reason == "delivery_limit":
        if context.version >= (4, 0) and LIMIT not in one.arguments:
            return context.give_policy(one, delivery_limit=-1)
        return context.redeclare(one, {LIMIT: -1 if context.version >= (4, 0) else None})
    if death.reason == "maxlen":
        if one.type == "quorum":
            return context.give_policy(one, overflow="reject-publish")
        return context.redeclare(one, dict.fromkeys(LENGTHS))
    waits = [context.index.queues[name] for name in sorted({*members, one.name})]
    timed = [(queue.message_ttl_ms, queue) for queue in waits if queue.message_ttl_ms is not None]
    work = [queue for _, queue in timed if context.is_consumed(queue)]
    if not work and timed:
        longest = max(ttl for ttl, _ in timed)
        work = [queue for ttl, queue in timed if ttl == longest]
    return context.redeclare(one, {"x-message-ttl": None}) if work == [one] else ()


def _cause_of(context: Context, death: Death) -> Evidence:
    one = death.queue
    cut = next(end for end in death.walk.outcomes if end.cause == "cycle")
    path = " → ".join(f"“{name}”" for name in (*(hop.queue for hop in cut.hops), one.name))
    number = sum(hop.queue == one.name for hop in cut.hops)
    rounds = "one round" if number == 1 else f"{number} rounds"
    what = "one copy of the message" if death.walk.delivered else "the message"
    sentence = (
        f"RabbitMQ drops {what} after {rounds} on the path {path}, because no consumer rejected it."
    )
    if death.reason == "delivery_limit":
        return limit_evidence(context, one, sentence)
    lengths = (name for name in LENGTHS if name in one.arguments)
    argument = "x-message-ttl" if death.reason == "expired" else next(lengths)
    return context.evidence(one, argument, sentence)


def limit_evidence(context: Context, one: Queue, sentence: str) -> Evidence:
    """With the limit that holds, which may be the default of RabbitMQ 4."""
    if LIMIT in one.arguments:
        return context.evidence(one, LIMIT, sentence)
    value = show_value(delivery_limit(one, context.version))
    return Evidence(one.identity, LIMIT, value, "default of RabbitMQ", sentence)


def _find_immediate_retries(context: Context) -> Iterator[Hit]:
    for death in context.deaths:
        back = next(_list_returns(death, is_delayed=False), None)
        if death.reason == "rejected" and back is not None:
            rejected = f"A message that a consumer of “{death.queue.name}” rejects"
            sentence = f"{rejected} comes back at once."
            queue = name_dead_letter_queue(death.queue.name)
            away = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
            if repair := context.redeclare(death.queue, away):
                repair = (*context.declare_missing(queue), *repair)
            evidence = context.evidence(death.queue, "x-dead-letter-exchange", sentence)
            yield Hit("", evidence, repair, state_unless(back[1].unless))


def _find_endless_retries(context: Context) -> Iterator[Hit]:
    known = [death for death in context.deaths if death.reason == "rejected"]
    # The name of a queue whose messages may have any key stands for all where no key matters.
    others = (context.reject(q, q.name) for q in context.dead_lettering if context.keys(q) is None)
    for death in (*known, *(one for one in others if _comes_back_alike(context, one))):
        if _is_endless(context, death):
            sentence = f"RabbitMQ never ends the retries of “{death.queue.name}”."
            yield Hit("", context.evidence(death.queue, "x-dead-letter-exchange", sentence))


def _comes_back_alike(context: Context, death: Death) -> bool:
    """Whether a message takes the same way back to its queue with any routing key: by the own key
    of each queue, or a fanout exchange, straight to queues."""
    for name in {hop.queue for outcome in death.back() for hop in outcome.hops}:
        queue = context.index.queues[name]
        has_key = queue.dead_letter_routing_key is not None
        if queue.dead_letter_exchange is None or (queue.dead_letter_exchange == "" and has_key):
            continue
        exchange = context.index.exchanges.get(queue.dead_letter_exchange)
        alike = ("direct", "fanout", "topic") if has_key else ("fanout",)
        if exchange is None or exchange.type not in alike:
            return False
        leaving = context.index.definitions.leaving(exchange.name)
        if not all(one.destination_is_queue for one in leaving):
            return False
    return True


def _is_endless(context: Context, death: Death) -> bool:
    """Whether a message comes back with a routing key with which it was rejected before.

    A retry ladder gives each retry another key, and the last key leads to a parking queue.
    """
    ended: set[str] = set()

    def comes_again(one: Death, before: tuple[str, ...]) -> bool:
        keys = (*before, one.routing_key)
        for key, _ in _list_returns(one, is_delayed=True):
            if key in keys or len(keys) > MOST_RETRIES:
                return True
            if key not in ended and comes_again(context.reject(one.queue, key), keys):
                return True
        ended.add(one.routing_key)
        return False

    return comes_again(death, ())


def _list_returns(death: Death, *, is_delayed: bool) -> Iterator[tuple[str, RouteOutcome]]:
    """With which routing keys a message comes back to its queue, and on which way."""
    for outcome in death.back():
        for hop in outcome.hops[1:]:
            if hop.queue == death.queue.name and bool(hop.after) == is_delayed:
                yield hop.routing_key, outcome


def describe_parking(queue: str, snapshot: Snapshot) -> tuple[str, str, str]:
    """The parking queue of a queue whose retries never end, the command that declares it ("" for
    one that exists), and the lines of a consumer (pika) that end them.

    It is the queue beside it that is named as its dead-letter queue, without a TTL. A consumer may
    be Delayboard, which parks its messages.
    """
    named = [one for one in snapshot.definitions.queues if has_dead_letter_name(one.name, queue)]
    lasting = [one for one in named if one.type != "stream" and one.message_ttl_ms is None]
    ends = (one.name for one in lasting if one.dead_letter_exchange is None)
    existing = min(ends, default="")
    parking = existing or f"{queue}-parking"
    quoted = json.dumps(parking, ensure_ascii=False)
    lines = f"""\
deaths = (properties.headers or {{}}).get("x-death", [])
rejected = sum(
    d["count"] for d in deaths if d["reason"] == "rejected"
)
if rejected < 3:  # so many retries
    channel.basic_reject(method.delivery_tag, requeue=False)
else:
    channel.basic_publish(
        "", {quoted}, body, properties, mandatory=True
    )
    channel.basic_ack(method.delivery_tag)"""
    declare = Admin(snapshot.version_tuple).declare_queue(Queue(parking))
    return parking, "" if existing else declare, lines


def _find_poison(context: Context) -> Iterator[Hit]:
    for one in context.queues:
        limit = delivery_limit(one, context.version)
        is_work = one.dead_letter_exchange is None and one.message_ttl_ms is None
        if limit is not None and is_work:
            sentence = f"“{one.name}” drops a message after {limit} failed deliveries."
            evidence = limit_evidence(context, one, sentence)
            yield Hit("", evidence, context.give_dead_letter_queue(one))


DROPPED = rule("F04", _find_dropped)
AT_ONCE = rule("F23", _find_immediate_retries)
POISON = rule("F26", _find_poison)
FOR_EVER = rule("F27", _find_endless_retries)
