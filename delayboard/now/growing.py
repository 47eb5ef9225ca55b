"""Dead letters that grow: more in a queue than an hour ago, with those parked since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from django.db.models import Count

from delayboard.dead_letters.queues.growth import SPAN, growths
from delayboard.models import DeadLetterQueue, ParkedMessage, ParkedState
from delayboard.now.counters import read_depth
from delayboard.now.problems import Link, Problem, ProblemKind
from topology.content.text import count_text
from topology.delays import format_span
from topology.models import Broker
from topology.snapshots import Latest

# Fewer in an hour come from single messages.
GROWS_BY = 10
CONDITION = f"at least {GROWS_BY} more in a queue within {format_span(SPAN)}"


def find_growing(
    brokers: Sequence[Broker], known: Mapping[int, Latest], now: datetime
) -> Iterator[Problem]:
    """The confirmed queues with at least GROWS_BY new dead letters in the last hour.

    Of a queue without a sample an hour old, since its first one; without any nothing is known.
    """
    rows = DeadLetterQueue.objects.filter(broker__in=brokers, is_confirmed=True)
    queues = list(rows.select_related("broker").order_by("queue", "pk"))
    if not queues:
        return
    depths = {row.pk: read_depth(row, known[row.broker_id]) for row in queues}
    in_queue = growths(depths, now)
    spans = {growth.since for growth in in_queue.values()}
    parked = {since: _count_parked(brokers, now - since) for since in spans}
    for row in queues:
        growth = in_queue.get(row.pk)
        if growth is None:
            continue
        number = growth.change + parked[growth.since].get((row.broker_id, row.queue), 0)
        if number >= GROWS_BY:
            link = Link("View dead letters", "dead_letters", query={"broker": row.broker.slug})
            minutes = growth.since // timedelta(minutes=1)
            ago = "an hour" if growth.since >= SPAN else f"{minutes} min"
            sentence = f"{row.queue}: {count_text(number)} more dead letters than {ago} ago."
            yield Problem("warning", ProblemKind.DEAD_LETTERS, sentence, link, f"growing/{row.pk}")


def _count_parked(brokers: Sequence[Broker], since_at: datetime) -> dict[tuple[int, str], int]:
    """Broker and queue -> how many messages were parked from it since then."""
    # The time of the state has the index.
    since = {"state_at__gt": since_at, "parked_at__gt": since_at}
    recent = ParkedMessage.objects.filter(broker__in=brokers, state=ParkedState.PARKED, **since)
    counts = recent.order_by().values_list("broker", "queue").annotate(number=Count("pk"))
    return {(broker, queue): number for broker, queue, number in counts}
