"""How many messages fall due when: counted as rows open and close, so that sums read few rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime

from django.db.models import F

from analytics.models import DueCount
from topology.models import Topology

MINUTE, HOUR, DAY = 60, 3600, 86_400
WIDTHS = (MINUTE, HOUR, DAY)


def change(topology: Topology, changes: Mapping[tuple[str, datetime], int]) -> None:
    """Add these numbers, by destination and due time, to the counts of open rows.

    Within the transaction that opens and closes the rows.
    """
    for (destination, width, due_at), number in _by_width(changes).items():
        key = {"topology": topology, "destination": destination, "width": width, "due_at": due_at}
        changed = DueCount.objects.filter(**key).update(waiting=F("waiting") + number)
        if not changed:
            DueCount.objects.create(**key, waiting=number)


def floor(moment: datetime, width: int) -> datetime:
    """The beginning of the minute, hour or UTC day that the moment lies in."""
    seconds = int(moment.timestamp())
    return datetime.fromtimestamp(seconds - seconds % width, UTC)


def _by_width(changes: Mapping[tuple[str, datetime], int]) -> dict[tuple[str, int, datetime], int]:
    sums = Counter[tuple[str, int, datetime]]()
    for (destination, due_at), number in changes.items():
        for width in WIDTHS:
            sums[destination, width, floor(due_at, width)] += number
    return {key: number for key, number in sums.items() if number}
