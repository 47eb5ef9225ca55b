"""A queue whose consumer is a forwarder of ours: messages go on when they are due, else round
again.

Every lap is a new publish without x-death, so that no rule against cycles counts the laps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from topology.definitions import MAXIMUM_TTL_MS, Queue
from topology.message import DEATH_HEADERS, Forwarder
from topology.routing import sentences
from topology.routing.context import Circumstances
from topology.routing.message_copy import Copy
from topology.routing.outcome import RouteOutcome

_STRIPPED = DEATH_HEADERS | {"CC", "BCC"}


def due_ms(headers: Mapping[str, Any], name: str, now_ms: int) -> int | None:
    """When a message is due, by a header of whole UTC milliseconds; None without a valid header.

    A time more than ten years from `now_ms` is not valid: no pattern offers it, and the message
    would never leave.
    """
    stated = headers.get(name)
    if not isinstance(stated, int) or isinstance(stated, bool):
        return None
    return stated if stated <= now_ms + MAXIMUM_TTL_MS else None


def without_due_header(forwarder: Forwarder) -> Forwarder:
    """The same, run by others: the header that their consumer reads is unknown."""
    return replace(forwarder, due_header="")


def count_from_now(
    headers: Mapping[str, Any], forwarders: Iterable[Forwarder], now_ms: int
) -> Mapping[str, Any]:
    """The headers with each moment that one of the forwarders reads counted from `now_ms` (UTC)."""
    names = {forwarder.due_header for forwarder in forwarders} & headers.keys()
    stated = {name: due_ms(headers, name, now_ms) for name in names}
    return {**headers, **{n: due - now_ms for n, due in stated.items() if due is not None}}


def forward_copy(
    copy: Copy, queue: Queue, forwarder: Forwarder, around: Circumstances
) -> Copy | RouteOutcome:
    """What the forwarder publishes; `headers` hold the due time counted from the publish, time 0.

    With a forwarder of others (`without_due_header`) the route ends there.
    """
    if not forwarder.due_header:
        why = sentences.OTHER_FORWARDER.format(forwarder.onward)
        return replace(copy, hops=(*copy.hops, copy.hop(queue.name, None))).ends("delivered", why)
    due = due_ms(copy.headers, forwarder.due_header, copy.after)
    if due is not None and due > copy.after:
        # One lap more, or all that are left in one step.
        again = _publish_again(
            copy, queue, forwarder.back, sentences.forwarder_return(queue.name, 1), around
        )
        lap_ms = _lap_ms(copy, forwarder, around)
        if isinstance(again, RouteOutcome) or not lap_ms:
            return again
        # Back in the forwarder's queue for the last time, however many laps that takes. One
        # that may come later than at `after` ends some lap in the time of one after it is
        # due.
        laps = -(-(due - again.after) // lap_ms)
        back_at, spread = again.after + laps * lap_ms, again.spread
        if spread != 0:
            back_at = due
            spread = None if spread is None else max(lap_ms, again.after + spread - due)
        returned = replace(again, why=sentences.forwarder_return(forwarder.queue, laps))
        return forward_copy(
            replace(
                returned,
                hops=(*returned.hops, returned.hop(forwarder.back, back_at - returned.after)),
                after=back_at,
                spread=spread,
                keys=(forwarder.queue,),
                why=sentences.expiry(forwarder.back, lap_ms),
            ),
            queue,
            forwarder,
            around,
        )
    return _publish_again(
        copy, queue, forwarder.onward, sentences.FORWARDING.format(queue.name), around
    )


def _publish_again(
    copy: Copy, queue: Queue, to: str, why: str, around: Circumstances
) -> Copy | RouteOutcome:
    """Published again to this queue: nothing is remembered of what it was before."""
    here = replace(copy, hops=(*copy.hops, copy.hop(queue.name, 0)))
    if to not in around.index.queues:
        return here.ends("stuck", sentences.FORWARDER_KEEPS.format(queue.name, to))
    return replace(
        here,
        exchange="",
        keys=(to,),
        headers={name: value for name, value in copy.headers.items() if name not in _STRIPPED},
        why=why,
        deaths=(),
        failed=0,
        holder="",
        passed=frozenset(),
    )


def _lap_ms(copy: Copy, forwarder: Forwarder, around: Circumstances) -> int | None:
    """How long one lap takes; None where it is more than a TTL and a way straight back."""
    room = around.index.queues.get(forwarder.back)
    is_plain = (
        room is not None
        and room.type in ("classic", "quorum")
        and room.dead_letter_exchange == ""
        and room.dead_letter_routing_key == forwarder.queue
        and room.name not in around.consumers
        and copy.expiration_ms is None
    )
    return room.message_ttl_ms if room is not None and is_plain else None
