"""Closes the rows of messages that were moved to another topology, which lists them now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from django.db import transaction
from django.utils import timezone

from analytics.models import ScheduledMessage
from analytics.scheduled.rows import due
from topology.models import Topology


def close_moved(topology: Topology, keys: Iterable[str]) -> None:
    """One open row for each key, the first that is due: no tap sees such a message leave."""
    wanted = Counter(keys)
    with transaction.atomic():
        rows = ScheduledMessage.objects.filter(
            topology=topology, key__in=wanted, left_at=None, entered_at__isnull=False
        )
        closed, counts = [], Counter[tuple[str, datetime]]()
        columns = ("pk", "key", "destination", "due_at")
        for pk, key, destination, due_at in rows.order_by("due_at", "pk").values_list(*columns):
            if wanted[key]:
                wanted[key] -= 1
                closed.append(pk)
                if due_at is not None:
                    counts[destination, due_at] -= 1
        ScheduledMessage.objects.filter(pk__in=closed).update(left_at=timezone.now())
        due.change(topology, counts)
