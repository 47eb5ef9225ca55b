"""Closes the rows of messages that were taken out of their delay: no tap sees them leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from django.db import transaction
from django.utils import timezone

from analytics import minutes
from analytics.models import ScheduledMessage
from analytics.models.scheduled_message import WAITING
from topology.models import Topology


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
