"""Which deliveries may be messages that are parked already.

A crash between commit and ack has a message delivered again, and then it is kept a second time:
two equal messages can both be real, so that nothing is ever dropped. It is marked if it is
flagged as redelivered, and equals a message whose ack the broker may not have had.

When the nodes of the connection and of a quorum queue's leader lose each other, the queue takes
back what it had delivered, and delivers it again, over the same connection too (`{down, Pid,
noconnection}` in rabbit_fifo.erl); meanwhile the channel answers as if it had the acks
(rabbit_quorum_queue:stat/2). It has counted that: there a higher count makes a repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from django.db.models import Exists, F, OuterRef, Q
from django.utils import timezone

from delayboard.dead_letters.parked.failure import fit_column
from delayboard.dead_letters.parked.store import Prepared
from delayboard.models import ParkedMessage, Parking, ParkSession
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import edit_properties, read_properties
from topology.message import COUNTED_BY_QUEUE, Headers

# Time after parking in which acks that seemed sure are doubted.
LONGEST_OUTAGE = timedelta(hours=1)


def earlier(session: ParkSession, prepared: Sequence[Prepared]) -> list[int | None]:
    """For each the message that it may be a repeat of; a message has one repeat at most."""
    doubtful = {p.content_id for p in prepared if p.message.redelivered}
    counted = {p.content_id for p in prepared if deliveries(p.message.headers)} & doubtful
    waiting = _find_unsure(session, doubtful, counted) if doubtful else {}
    found: list[int | None] = []
    for one in prepared:
        raw = one.message.properties.raw
        known = waiting.get((one.content_id, identity(raw)), []) if one.message.redelivered else []
        count = deliveries(one.message.headers)
        place = next((n for n, (_, highest) in enumerate(known) if count > highest), None)
        found.append(None if place is None else known.pop(place)[0])
    return found


def number_unsure(parking: Parking) -> int:
    """How many that this parking kept may lie in their queue still, and have no repeat."""
    return (
        ParkedMessage.objects.filter(
            ~Exists(ParkedMessage.objects.filter(repeat_of=OuterRef("pk"))),
            session__parking=parking,
            session__ended_at=None,
            pk__gt=F("session__acked_to"),
            pk__lte=F("session__stored_to"),
        )
        .order_by()
        .count()
    )


def identity(raw: bytes) -> bytes:
    """The properties without what a queue adds when it delivers a message again."""
    if not any(name.encode() in raw for name in COUNTED_BY_QUEUE):
        return raw
    try:
        return edit_properties(read_properties(raw), drop_header=COUNTED_BY_QUEUE.__contains__).raw
    except FieldError:
        return raw


def deliveries(headers: Headers) -> int:
    """How many deliveries before this one the queue has counted in the headers."""
    counts = [headers.get(name) for name in COUNTED_BY_QUEUE]
    return sum(count for count in counts if isinstance(count, int) and count > 0)


def _find_unsure(
    session: ParkSession, contents: set[str], counted: set[str]
) -> dict[tuple[str, bytes], list[tuple[int, int]]]:
    """Messages of the queue that have no repeat, and the deliveries that a repeat of each exceeds.

    Of other sessions those whose ack is not known, with -1. Where the queue has counted deliveries
    (`counted`) also those whose ack seemed sure: of this session, and of the last hour.
    """
    parked_messages: dict[tuple[str, bytes], list[tuple[int, int]]] = {}
    of_others = ~Q(session=session.pk)
    is_unsure = of_others & Q(pk__gt=F("session__acked_to"))
    is_recent = Q(session=session.pk) | Q(parked_at__gt=timezone.now() - LONGEST_OUTAGE)
    rows = ParkedMessage.objects.filter(
        is_unsure | (is_recent & Q(content_id__in=counted)),
        ~Exists(ParkedMessage.objects.filter(repeat_of=OuterRef("pk"))),
        broker=session.broker_id,
        queue=fit_column(session.queue),
        content_id__in=contents,
        pk__lte=F("session__stored_to"),
    )
    columns = ("pk", "content_id", "properties", "session", "session__acked_to")
    for key, content, raw, of, acked_to in rows.order_by("pk").values_list(*columns):
        has_count = of == session.pk or key <= acked_to
        highest = deliveries(read_properties(bytes(raw)).headers) if has_count else -1
        known = parked_messages.setdefault((content, identity(bytes(raw))), [])
        known.append((key, highest))
    return parked_messages
