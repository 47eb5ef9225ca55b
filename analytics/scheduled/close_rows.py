"""Closes rows of messages that no tap saw leave: taken out, moved, or due before anybody looked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from analytics import minutes
from analytics.models import ScheduledMessage
from analytics.models.scheduled_message import WAITING
from analytics.observation import is_stuck, stuck_ranges
from topology.models import Topology

BATCH = 500


def close_moved(topology: Topology, keys: Iterable[str]) -> None:
    """One open row for each key of those moved to another topology, the first that is due."""
    wanted = Counter(keys)
    closed = []
    with transaction.atomic():
        rows = ScheduledMessage.objects.filter(WAITING, topology=topology, key__in=wanted)
        for pk, key in rows.order_by("due_at", "pk").values_list("pk", "key"):
            if wanted[key]:
                wanted[key] -= 1
                closed.append(pk)
        close_rows(topology, closed)


def close_rows(topology: Topology, chosen: Collection[int]) -> None:
    """Close these of the topology that are open."""
    now = timezone.now()
    with transaction.atomic():
        rows = ScheduledMessage.objects.filter(topology=topology, pk__in=chosen, left_at=None)
        if number := rows.filter(entered_at__isnull=False).count():
            minutes.count_taken_out(topology, number, now)
        rows.update(left_at=now)


def settle(topologies: Iterable[Topology], moment: datetime) -> int:
    """Write down that what was due before `moment` has left when it was due; how many.

    Until then it was taken to have, unless it is stuck. Only for topologies whose exits no tap
    sees. Else all of it would be overdue for ever when the firehose begins to see what leaves.
    """
    return sum(
        settle_one(topology, moment) for topology in topologies if not topology.observes_arrivals
    )


def settle_one(topology: Topology, moment: datetime) -> int:
    """The same for one that had no tap before `moment`, whatever it has now."""
    open_rows = ScheduledMessage.objects.filter(
        WAITING, topology=topology, due_at__lt=moment
    ).exclude(is_stuck(stuck_ranges([topology.pk]), moment))
    total = 0
    while True:
        with transaction.atomic():
            rows = open_rows.select_for_update(of=("self",)).order_by("pk")
            found = list(rows.values_list("pk", flat=True)[:BATCH])
            left = ScheduledMessage.objects.filter(pk__in=found)
            left.update(left_at=F("due_at"), caught_up=False)
        total += len(found)
        if len(found) < BATCH:
            return total
