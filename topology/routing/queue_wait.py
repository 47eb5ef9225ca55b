"""What becomes of a message in a queue: it stays, or it dies after a while for a reason."""

from __future__ import annotations

from dataclasses import dataclass, replace

from topology.definitions import Queue
from topology.routing import sentences
from topology.routing.context import Consumer, Does, failures_until_death
from topology.routing.cycle import Reason
from topology.routing.message_copy import Copy, smaller_of
from topology.routing.outcome import Ending


@dataclass(frozen=True)
class Remains:
    """The message goes no further."""

    ending: Ending
    why: str
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dies:
    """The message is dead-lettered after `ms` at the earliest, and at most `spread` later (None:
    any time).

    `failed` is how often its delivery failed so far; `how` completes a sentence on its loss.
    """

    reason: Reason
    ms: int
    how: str
    spread: int | None = 0
    failed: int = 0
    doubts: tuple[str, ...] = ()

    def describe(self, queue: str) -> str:
        """What put it where it is next."""
        if self.reason == "expired":
            return sentences.expiry(queue, self.ms)
        return (
            f"rejected in {queue}"
            if self.reason == "rejected"
            else f"over the delivery limit in {queue}"
        )


def wait_in_queue(
    queue: Queue, copy: Copy, consumer: Consumer | None, version: tuple[int, ...]
) -> Remains | Dies:
    """Streams and consumers that ack end the way; so does a queue without a time to live.

    The smaller of the queue's and the message's time counts, from its arrival on. A time of 0 lets
    it die at once where no consumer waits; a quorum queue makes it 1 ms (rabbit_fifo.erl
    update_expiry_header/3, all versions).
    """
    ttl = smaller_of(queue.message_ttl_ms, copy.expiration_ms)
    if queue.type == "stream":
        return Remains("delivered", sentences.WAITS)
    if ttl == 0 and queue.type == "quorum":
        ttl = 1
    does = consumer.action(queue.name, copy.visible_deaths) if consumer else None
    found = (
        _wait_for_ttl(queue, copy, ttl) if does is None else _consume(queue, copy, does, version)
    )
    if does is not None and ttl is not None:
        found = _add_doubt(found, queue, ttl)
    doubts = (
        sentences.may_be_full(
            queue, is_dead_letter=bool(copy.hops), is_confirmed=bool(copy.holder)
        ),
        sentences.may_be_deleted(queue, found.ms if isinstance(found, Dies) else None)
        if does is None
        else "",
        # One for failed messages has no dead-letter exchange, and somebody looks at it.
        sentences.has_no_end(queue.name)
        if does is None and ttl is None and copy.hops and queue.dead_letter_exchange is not None
        else "",
    )
    return replace(found, doubts=(*found.doubts, *(doubt for doubt in doubts if doubt)))


def _wait_for_ttl(queue: Queue, copy: Copy, ttl: int | None) -> Remains | Dies:
    if ttl is None:
        return Remains("delivered", sentences.WAITS)
    spread, doubts = _find_delay_by_head(queue, ttl)
    how = sentences.expires(queue.name, ttl)
    return Dies("expired", ttl, how, spread, copy.failed, doubts)


def _find_delay_by_head(queue: Queue, ttl: int) -> tuple[int | None, tuple[str, ...]]:
    """The delay where RabbitMQ checks only the head of the queue, so what waits before it may keep
    a message longer.
    """
    longest = queue.message_ttl_ms
    if longest is None or queue.arguments.number("x-max-priority") is not None:
        return None, (sentences.head_delay(queue.name, None),)
    if ttl < longest:
        return longest - ttl, (sentences.head_delay(queue.name, longest),)
    return 0, ()


def _consume(queue: Queue, copy: Copy, does: Does, version: tuple[int, ...]) -> Remains | Dies:
    if does == "acks":
        return Remains("delivered", sentences.TAKEN)
    if does == "rejects":
        failed = copy.failed + (queue.type == "quorum")
        return Dies("rejected", 0, sentences.REJECTION.format(queue.name), failed=failed)
    failures = failures_until_death(queue, does, copy.failed, version)
    if failures is None:
        return Remains("stuck", sentences.NEVER_ANSWERED.format(queue.name))
    how = sentences.exceeded_limit(queue.name, failures)
    died = Dies("delivery_limit", 0, how, failed=copy.failed + failures)
    if version < (4, 3) or queue.arguments.text("x-delayed-retry-type") in (None, "disabled"):
        return died
    return replace(died, spread=None, doubts=(sentences.DELAYED_RETRIES.format(queue.name),))


def _add_doubt(found: Remains | Dies, queue: Queue, ttl: int) -> Remains | Dies:
    if isinstance(found, Remains) and found.ending == "stuck":
        how = sentences.expires(queue.name, ttl)
        return Dies(
            "expired",
            ttl,
            how,
            None,
            doubts=(sentences.NO_EXPIRY_WHILE_UNACKED.format(queue.name),),
        )
    return replace(found, doubts=(*found.doubts, sentences.too_slow(queue.name, ttl)))
