"""Where a message would go, when, and how it ends: time, TTL, dead-lettering, cycles."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from topology.definitions import MAXIMUM_TTL_MS, Definitions, Exchange, Queue
from topology.message import Forwarder
from topology.routing import sentences
from topology.routing.context import Circumstances, Consumer, merge_consumers
from topology.routing.cycle import (
    dead_letter_headers,
    is_cycle,
    is_interpreted,
    published_deaths,
    record,
)
from topology.routing.forwarder import count_from_now, forward_copy
from topology.routing.matching import delayed_exchange
from topology.routing.matching.index import NEWEST, Index
from topology.routing.matching.match import Matched, find_deciding, keys_of, match
from topology.routing.message_copy import Copy, add_times
from topology.routing.outcome import Cause, Ending, Hop, RouteOutcome, Walk
from topology.routing.queue_wait import Dies, Remains, wait_in_queue

__all__ = ["Consumer", "Ending", "Hop", "Index", "RouteOutcome", "Walk", "walk"]

# Most outcomes of a walk: enough for every real topology; a fan-out of rings has more paths than
# time.
MAXIMUM_OUTCOMES = 200
MAXIMUM_COPIES = 2000
# Most digits of an expiration: the longest property.
MOST_DIGITS = 255


def walk(
    found: Definitions | Index,
    exchange: str,
    routing_key: str,
    *,
    version: tuple[int, ...] = NEWEST,
    headers: Mapping[str, Any] | None = None,
    expiration: str | None = None,
    consumed: AbstractSet[str] = frozenset(),
    consumers: Mapping[str, Consumer] | None = None,
    forwarders: Sequence[Forwarder] = (),
    now_ms: int = 0,
) -> Walk:
    """Follow one publish through queue TTLs, expirations and dead-letter exchanges to every end.

    `found` has policies folded into the arguments, as Snapshot.definitions does; pass an Index for
    many walks. `consumers` is what they do by queue, `consumed` the queues whose consumer acks.
    `headers` brings CC, BCC and, to brokers before 4.0, x-death. `expiration` is the property as
    it is. `forwarders` run where they consume, whatever else
    `consumers` contains; their due header counts from the publish, as in Route.make_headers(0), or
    is UTC with that time in `now_ms`. When the route branches too often, the last outcome is
    `uncertain`, and its sentence says that it was not followed further.
    """
    around = Circumstances(
        Index.of(found),
        version or NEWEST,
        merge_consumers(consumed, consumers),
        {forwarder.queue: forwarder for forwarder in forwarders},
    )
    stated = count_from_now(headers or {}, forwarders, now_ms)
    start = Copy(exchange, (routing_key,), stated)
    target = around.index.exchanges.get(exchange)
    try:
        if target is not None and target.internal:
            raise ValueError(sentences.INTERNAL.format(exchange))
        expiration_ms = None if expiration is None else read_expiration(expiration)
        keys = keys_of(routing_key, stated)
    except ValueError as error:
        return Walk((start.ends("dropped", sentences.PUBLISH_REFUSAL.format(str(error))),))
    believed = published_deaths(stated) if is_interpreted(around.version) else ()
    return follow([replace(start, keys=keys, expiration_ms=expiration_ms, deaths=believed)], around)


def read_expiration(text: str) -> int:
    """The milliseconds of an expiration; ValueError with a sentence for what brokers refuse."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= MOST_DIGITS
    if not is_number or not 0 <= int(text) <= MAXIMUM_TTL_MS:
        raise ValueError(sentences.BAD_EXPIRATION.format(text))
    return int(text)


def follow(copies: Sequence[Copy], around: Circumstances) -> Walk:
    """Route the copies, then all that they become, until each has an end."""
    waiting, ended = deque(copies), list[RouteOutcome]()
    for _ in range(MAXIMUM_COPIES):
        if not waiting or len(ended) >= MAXIMUM_OUTCOMES:
            break
        copy = waiting.popleft()
        reached, lost = _route(copy, around)
        ended.extend(lost)
        for there, queue in reached:
            after = enter(there, queue, around)
            if isinstance(after, Copy):
                waiting.append(after)
            else:
                ended.append(after)
    if waiting:
        ended.append(waiting[0].ends("uncertain", sentences.BRANCHES_TOO_OFTEN))
    return Walk(tuple(ended))


def _route(
    copy: Copy, around: Circumstances
) -> tuple[list[tuple[Copy, Queue]], list[RouteOutcome]]:
    """The queues that it gets into, at once or after an exchange kept it, and how others end."""
    if copy.exchange and copy.exchange not in around.index.exchanges:
        return [], [_end_unrouted(copy, sentences.NO_EXCHANGE.format(copy.exchange))]
    matched = match(around.index, copy.exchange, copy.keys, copy.headers, around.version)
    copy = _add_unknown(copy, matched, around)
    queues, ended = _route_now(copy, matched, around)
    reached = [(copy, queue) for queue in queues]
    for exchange in matched.storing:
        later, lost = _route_later(copy, exchange, around)
        reached += later
        ended += lost
    return reached, ended


def _add_unknown(copy: Copy, matched: Matched, around: Circumstances) -> Copy:
    """With what could change this step of its way, of what is not known of it."""
    if not copy.unknown:
        return copy
    deciding, is_by_alternate = find_deciding(
        around.index,
        matched,
        copy.exchange,
        copy.keys,
        copy.headers,
        around.version,
        copy.unknown,
    )
    is_other = is_by_alternate or not matched.queues
    unless = copy.unless | deciding if is_other else copy.unless
    return replace(copy, others=copy.others | deciding, unless=unless)


def _route_later(
    copy: Copy, exchange: Exchange, around: Circumstances
) -> tuple[list[tuple[Copy, Queue]], list[RouteOutcome]]:
    """What becomes of it when its delay in this exchange is over.

    No queue waits for it any longer, and no ring is cut: the plugin routes it by itself, and not
    as a dead letter (route in rabbit_delayed_message.erl).
    """
    ms = delayed_exchange.delay_in_exchange_ms(exchange, copy.headers) or 0
    why = sentences.exchange_storage(exchange.name, ms)
    later = replace(
        copy,
        exchange=exchange.name,
        headers=delayed_exchange.mark_released(copy.headers),
        why=why,
        after=copy.after + ms,
        kept=copy.kept if copy.hops else why,
        holder="",
        doubts=(*copy.doubts, sentences.ONLY_COPY.format(exchange.name)),
    )
    matched = match(around.index, exchange.name, later.keys, later.headers, around.version)
    unclear = _end_uncertain(later, matched)
    if not matched.queues:
        nowhere = sentences.no_queue(exchange.name, later.keys)
        return [], unclear or [_end_unrouted(later, nowhere)]
    return [(later, around.index.queues[name]) for name in matched.queues], unclear


def _end_uncertain(copy: Copy, matched: Matched) -> list[RouteOutcome]:
    return [
        copy.ends("uncertain", sentences.unforeseeable(exchange))
        for exchange in matched.unforeseeable
    ]


def _route_now(
    copy: Copy, matched: Matched, around: Circumstances
) -> tuple[list[Queue], list[RouteOutcome]]:
    """The queues that it gets into, and how the copies that get into none end.

    Before 4.0 a quorum queue that dead-letters at least once into itself never learns that it
    has taken the message, and keeps it besides (tried on 3.10.8; not so on 4.0.5 and 4.3.6).
    """
    index, unclear = around.index, _end_uncertain(copy, matched)
    if not matched.queues:
        if matched.storing and not copy.holder:
            return [], unclear
        nowhere = sentences.no_queue(copy.exchange, copy.keys)
        return [], unclear or [_end_unrouted(copy, nowhere)]
    cut = {name for name in matched.queues if copy.hops and is_cycle(copy.deaths, name)}
    left = [index.queues[name] for name in matched.queues if name not in cut]
    if cut and not left and not unclear and copy.holder:
        return [], [_end_unrouted(copy, sentences.cut_cycle(*sorted(cut)), "cycle")]
    lost = [copy.ends("dropped", sentences.cut_cycle(name), cause="cycle") for name in sorted(cut)]
    if around.version < (4, 0) and copy.holder in (queue.name for queue in left):
        into_itself = sentences.SELF_DEAD_LETTERING.format(copy.holder)
        lost.append(copy.ends("stuck", into_itself, queue=copy.holder))
    return left, unclear + lost


def _end_unrouted(copy: Copy, why: str, cause: Cause = "no_route") -> RouteOutcome:
    """The outcome of a message that is not routed: lost, unless the queue where it died keeps what
    it cannot dead-letter.
    """
    if copy.holder:
        kept = sentences.STUCK_STORAGE.format(copy.holder, why)
        return copy.ends("stuck", kept, queue=copy.holder, cause=cause)
    return copy.ends("dropped", why, cause=cause)


def enter(copy: Copy, queue: Queue, around: Circumstances) -> Copy | RouteOutcome:
    """Into the queue: how it ends there, or what leaves it for the dead-letter exchange.

    A stream gets no dead letter before 3.12, unless it is handed on at least once (RabbitMQ docs,
    "Streams"; tried on 3.10.8 and 4.0.5).
    """
    if queue.type == "stream" and copy.hops and not copy.holder and around.version < (3, 12):
        return copy.ends("dropped", sentences.DEAF_STREAM.format(queue.name), cause="old_stream")
    if (forwarder := around.forwarders.get(queue.name)) is not None:
        return forward_copy(copy, queue, forwarder, around)
    state = around.state(copy, queue)
    if state in copy.passed:
        names = [hop.queue for hop in copy.hops]
        last_lap = names[len(names) - 1 - names[::-1].index(queue.name) :]
        again = Remains("stuck", sentences.goes_round(last_lap))
        return leave(copy, queue, again, around.version)
    consumer = around.consumers.get(queue.name)
    passed = replace(copy, passed=copy.passed | {state})
    return leave(
        passed, queue, wait_in_queue(queue, copy, consumer, around.version), around.version
    )


def leave(
    copy: Copy, queue: Queue, found: Remains | Dies, version: tuple[int, ...]
) -> Copy | RouteOutcome:
    """The end in this queue, or the dead letter: without its expiration, and with one death more.

    The queue's x-dead-letter-routing-key replaces all keys; without one, all are kept, those of
    CC and BCC too.
    """
    hop = copy.hop(queue.name, found.ms if isinstance(found, Dies) else None)
    there = replace(copy, hops=(*copy.hops, hop), doubts=(*copy.doubts, *found.doubts))
    if isinstance(found, Remains):
        return there.ends(found.ending, found.why)
    dead = replace(there, after=copy.after + found.ms, spread=add_times(copy.spread, found.spread))
    if queue.dead_letter_exchange is None:
        nowhere = sentences.DEAD_LETTERS_NOWHERE.format(found.how)
        return dead.ends("dropped", nowhere, cause="no_dead_letter_exchange")
    key = queue.dead_letter_routing_key
    return replace(
        dead,
        exchange=queue.dead_letter_exchange,
        keys=copy.keys if key is None else (key,),
        unknown=copy.unknown if key is None else copy.unknown - {"keys"},
        headers=dead_letter_headers(copy.headers, queue.name, found.reason, copy.exchange, version),
        why=found.describe(queue.name),
        expiration_ms=None,
        deaths=record(copy.deaths, queue.name, found.reason, version),
        failed=found.failed,
        holder=queue.name if stores_stuck_messages(queue) else "",
        doubts=(*dead.doubts, *_doubt_strategy(queue)),
    )


def stores_stuck_messages(queue: Queue) -> bool:
    """Whether it dead-letters at least once (rabbit_quorum_queue.erl dlh/5, all versions)."""
    return _asks_for_at_least_once(queue) and queue.arguments.text("x-overflow") == "reject-publish"


def _asks_for_at_least_once(queue: Queue) -> bool:
    strategy = queue.arguments.text("x-dead-letter-strategy")
    return queue.type == "quorum" and strategy == "at-least-once"


def _doubt_strategy(queue: Queue) -> tuple[str, ...]:
    if _asks_for_at_least_once(queue) and not stores_stuck_messages(queue):
        return (sentences.FELL_BACK.format(queue.name),)
    return ()
