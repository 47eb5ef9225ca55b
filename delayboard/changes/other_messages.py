"""What else passes the forwarders while messages are changed: a part of the dry run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from analytics.models import ScheduledMessage
from delayboard.changes.check import ChangeVerdict
from delayboard.changes.limits import LEAD


@dataclass(frozen=True)
class OtherMessages:
    """What else is forwarded: the messages known to be due for `queue` meanwhile, and more."""

    queue: str
    from_at: datetime
    until_at: datetime
    known: int


def count_other_messages(verdicts: Sequence[ChangeVerdict]) -> list[OtherMessages]:
    """What passes the forwarders besides, for each queue."""
    by_queue: dict[str, list[ChangeVerdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.point is not None:
            by_queue[verdict.point.binding.destination].append(verdict)
    found = []
    for queue, some in sorted(by_queue.items()):
        dues = [one.row.due_at for one in some if one.row.due_at]
        from_at, until_at = min(dues) - LEAD, max(dues)
        destinations = {one.row.destination for one in some}
        others = ScheduledMessage.objects.filter(
            broker=some[0].row.broker,
            left_at=None,
            destination__in=destinations,
            due_at__gte=from_at,
            due_at__lte=until_at,
        )
        known = others.exclude(pk__in=[one.row.pk for one in some]).count()
        found.append(OtherMessages(queue, from_at, until_at, known))
    return found
