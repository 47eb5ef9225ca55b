"""Delays that consumers keep: they take messages out of a queue and hold them until they are due.

RabbitMQ knows no due time of these messages, and none of them expires. What a library writes into
the body is in `topology.clients`.
"""

from __future__ import annotations

from datetime import timedelta

from topology.clients import dramatiq
from topology.definitions import MAXIMUM_TTL_MS, Definitions
from topology.structure.chain import Chain, Entry, Exit
from topology.structure.copies import Copy, Reading


def make_held(name: str, work: str, found: Definitions) -> Chain:
    """The chain of the queue `name`, whose messages consumers publish into `work` when due."""
    return Chain(
        work,
        (name,),
        (Entry(name, "", name),),
        (Exit(name, "", work),),
        (work,),
        schedules=True,
        retries=True,
        definitions=found.only([("queue", name), ("queue", work)]),
        held_by=dramatiq.NAME,
    )


def read_held(chain: Chain, copy: Copy) -> Reading | None:
    """Read a copy as `Reader.read` does, by the body.

    Only retries are numbered. A new message that a worker published after its delay looks like one
    that was published without a delay: both are exits with the attempt 0.
    """
    (queue,), (work,) = chain.queues, chain.destinations
    if copy.exchange or copy.routing_key not in (queue, work):
        return None
    body = dramatiq.read_body(copy.body)
    if body is None:
        return None
    if copy.routing_key == work:
        return Reading("exit", work, work, timedelta(0), body.failures, message_id=body.message_id)
    wait_ms = (body.due_at_ms or copy.at_ms) - copy.at_ms
    if wait_ms > MAXIMUM_TTL_MS:
        return None
    delay = timedelta(milliseconds=max(0, wait_ms))
    return Reading("entry", work, queue, delay, body.failures, message_id=body.message_id)
