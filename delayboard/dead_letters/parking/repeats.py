"""Which deliveries may be messages that are parked already.

A crash between commit and ack has a message delivered again, and then it is kept a second time:
two equal messages can both be real, so that nothing is ever dropped. It is marked if it is
flagged as redelivered, and equals a message whose ack the broker may not have had.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from django.db.models import Exists, F, OuterRef, Q

from delayboard.dead_letters.parked.failure import fit_column
from delayboard.dead_letters.parked.store import Prepared
from delayboard.models import ParkedMessage, Parking, ParkSession
from topology.broker.properties.field_values import FieldError
from topology.broker.properties.read import edit_properties, read_properties

# What a quorum queue counts in the headers of a message that comes again (4.0.5, 4.3.6).
COUNTERS = frozenset({"x-delivery-count", "x-acquired-count"})


def earlier(session: ParkSession, prepared: Sequence[Prepared]) -> list[int | None]:
    """For each the message that it may be a repeat of; a message has one repeat at most."""
    doubtful = {p.content_id for p in prepared if p.message.redelivered}
    waiting = _find_unsure(session, doubtful) if doubtful else {}
    found: list[int | None] = []
    for one in prepared:
        raw = one.message.properties.raw
        earlier = one.message.redelivered and waiting.get((one.content_id, identity(raw)))
        found.append(earlier.popleft() if earlier else None)
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
    if not any(name.encode() in raw for name in COUNTERS):
        return raw
    try:
        return edit_properties(read_properties(raw), drop_header=COUNTERS.__contains__).raw
    except FieldError:
        return raw


def _find_unsure(session: ParkSession, contents: set[str]) -> dict[tuple[str, bytes], deque[int]]:
    """Messages of other sessions of the queue whose ack is not known, and that have no repeat."""
    parked_messages: dict[tuple[str, bytes], deque[int]] = {}
    rows = ParkedMessage.objects.filter(
        ~Q(session=session.pk),
        ~Exists(ParkedMessage.objects.filter(repeat_of=OuterRef("pk"))),
        broker=session.broker_id,
        queue=fit_column(session.queue),
        content_id__in=contents,
        pk__gt=F("session__acked_to"),
        pk__lte=F("session__stored_to"),
    )
    for key, content, raw in rows.order_by("pk").values_list("pk", "content_id", "properties"):
        parked_messages.setdefault((content, identity(bytes(raw))), deque()).append(key)
    return parked_messages
