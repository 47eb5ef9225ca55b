"""Chosen messages that a parking did not find because they are parked already."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from delayboard.dead_letters.parked.failure import kept
from delayboard.dead_letters.queues.peek import history_id
from delayboard.models import ParkedMessage, Parking, ReplayItem
from topology.broker.properties.read import read_properties

# The peek on which the messages were selected may be this much older than the request.
SEEN_WITHIN = timedelta(hours=1)
MOST_SHOWN = 20
MOST_REPLAYS = 3


@dataclass(frozen=True)
class Elsewhere:
    """`number` of the messages that were not found; `messages` (ids) are the newest equal ones,
    and `replays` the newest replays that these are in.
    """

    number: int = 0
    parked_messages: tuple[int, ...] = ()
    replays: tuple[int, ...] = ()


def parked_elsewhere(parking: Parking) -> Elsewhere:
    """Messages of this queue that others parked, equal to those that this parking still looks for.

    Equal in content and history: several equal messages cannot be distinguished.
    """
    missing = Counter(handle.rpartition(".")[0] for handle in parking.handles or ())
    if not missing:
        return Elsewhere()
    rows = ParkedMessage.objects.filter(
        broker=parking.broker_id,
        queue=kept(parking.queue),
        content_id__in={equal.partition(".")[0] for equal in missing},
        parked_at__gte=parking.created_at - SEEN_WITHIN,
    ).exclude(session__parking=parking)
    found: Counter[str] = Counter()
    parked_messages = []
    for key, content, raw in rows.order_by("-pk").values_list("pk", "content_id", "properties"):
        equal = f"{content}.{history_id(read_properties(bytes(raw)).headers)}"
        if found[equal] < missing[equal]:
            found[equal] += 1
            parked_messages.append(key)
    replays = (
        ReplayItem.objects.filter(parked_message__in=parked_messages)
        .order_by("-batch_id")
        .distinct()
    )
    batches = replays.values_list("batch_id", flat=True)[:MOST_REPLAYS]
    return Elsewhere(found.total(), tuple(parked_messages[:MOST_SHOWN]), tuple(batches))
