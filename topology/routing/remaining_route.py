"""The rest of the way of a message that already waits in a queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from topology.definitions import Definitions, Queue
from topology.delays import milliseconds
from topology.message import Forwarder, Message
from topology.routing import sentences
from topology.routing.context import Circumstances, Consumer
from topology.routing.cycle import Entries, is_interpreted, published_deaths
from topology.routing.forwarder import count_from_now, forward_copy
from topology.routing.matching.index import NEWEST, Index
from topology.routing.matching.match import keys_of
from topology.routing.message_copy import Copy, add_times
from topology.routing.outcome import RouteOutcome, Walk
from topology.routing.queue_wait import Dies, Remains, wait_in_queue
from topology.routing.walk import follow, leave, read_expiration


def trace_remaining_route(
    found: Definitions | Index,
    message: Message,
    queue: str,
    *,
    version: tuple[int, ...] = NEWEST,
    waited: timedelta | None = None,
    consumers: Mapping[str, Consumer] | None = None,
    forwarders: Sequence[Forwarder] = (),
    now_ms: int = 0,
) -> Walk:
    """Follow a message on from `queue`, in times from now on; the first hop is its wait there.

    `now_ms` is now, in UTC, for the headers that the `forwarders` read.

    A message does not record when it came. `waited` is how long it has been there; without it, the
    remaining time is between zero and the whole TTL. Its keys are its routing key and CC, because
    RabbitMQ removes BCC at the publish.
    """
    around = Circumstances(
        Index.of(found),
        version or NEWEST,
        consumers or {},
        {forwarder.queue: forwarder for forwarder in forwarders},
    )
    headers = count_from_now(message.headers, forwarders, now_ms)
    start = Copy(message.exchange, (message.routing_key,), headers, why=sentences.WAITING)
    there = around.index.queues.get(queue)
    if there is None:
        return Walk((start.ends("uncertain", sentences.NO_SUCH_QUEUE.format(queue)),))
    try:
        copy = _make_copy(start, message, around)
    except ValueError as error:
        return Walk((start.ends("uncertain", str(error), queue=queue),))
    if (forwarder := around.forwarders.get(queue)) is not None:
        return _follow_on(forward_copy(copy, there, forwarder, around), around)
    whole = wait_in_queue(there, copy, around.consumers.get(queue), around.version)
    passed = replace(copy, passed=frozenset({around.state(copy, there)}))
    return _follow_on(leave(passed, there, _subtract_waited(whole, waited), around.version), around)


def _follow_on(after: Copy | RouteOutcome, around: Circumstances) -> Walk:
    return follow([after], around) if isinstance(after, Copy) else Walk((after,))


def _make_copy(start: Copy, message: Message, around: Circumstances) -> Copy:
    """Raises ValueError for what no broker would have taken over AMQP 0-9-1."""
    expiration = message.properties.expiration
    failed = message.headers.get("x-delivery-count")
    return replace(
        start,
        keys=keys_of(message.routing_key, message.headers),
        expiration_ms=None if expiration is None else read_expiration(expiration),
        deaths=count_own_deaths(around.index, message, around.version),
        failed=failed if isinstance(failed, int) and not isinstance(failed, bool) else 0,
    )


def _subtract_waited(found: Remains | Dies, waited: timedelta | None) -> Remains | Dies:
    if isinstance(found, Remains) or found.reason != "expired":
        return found
    if waited is None:
        return replace(found, ms=0, spread=add_times(found.spread, found.ms))
    return replace(found, ms=max(0, found.ms - milliseconds(waited)))


def count_own_deaths(index: Index, message: Message, version: tuple[int, ...]) -> Entries:
    """The deaths that the broker goes by.

    From 4.0 on an x-death that the message was published with is shown, but not believed: it is
    one when the message does not come from where its last death would have sent it.
    """
    deaths = published_deaths(message.headers)
    if is_interpreted(version) or not deaths:
        return deaths
    last = index.queues.get(str(message.headers.get("x-last-death-queue", deaths[0].queue)))
    return () if last is not None and not _has_come_from(last, message) else deaths


def _has_come_from(last: Queue, message: Message) -> bool:
    key = last.dead_letter_routing_key
    return last.dead_letter_exchange == message.exchange and key in (None, message.routing_key)
