"""What else passes the forwarders while messages are changed: a part of the dry run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from analytics.models import ScheduledMessage
from delayboard.changes.check import ChangeVerdict
from delayboard.changes.limits import LEAD
from delayboard.changes.select_messages import are_selected, distinct, id_headers
from delayboard.models import ScheduledChange
from delayboard.models.scheduled_change import OPEN

# An interception ends about so long after the last change.
AFTER = timedelta(seconds=2)


@dataclass(frozen=True)
class OtherMessages:
    """What else is forwarded: the messages known to be due for `queue` meanwhile, and more.

    With `are_only_changed` nothing else is: a header of each changed message has its id.
    """

    queue: str
    from_at: datetime
    until_at: datetime
    known: int = 0
    are_only_changed: bool = False


def count_other_messages(verdicts: Sequence[ChangeVerdict]) -> list[OtherMessages]:
    """What passes the forwarders besides, for each queue."""
    by_queue: dict[str, list[ChangeVerdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.point is not None:
            by_queue[verdict.point.binding.destination].append(verdict)
    return [_other_messages(queue, some) for queue, some in sorted(by_queue.items())]


def _other_messages(queue: str, some: Sequence[ChangeVerdict]) -> OtherMessages:
    broker = some[0].row.broker
    dues = [one.row.due_at for one in some if one.row.due_at]
    from_at, until_at = min(dues) - LEAD, max(dues)
    others_changed = ScheduledChange.objects.filter(
        interception__queue=queue,
        broker=broker,
        state__in=OPEN,
        due_at__range=(from_at, until_at + LEAD),
    )
    stated = [id_headers(one.row) for one in some]
    stated += others_changed.values_list("id_headers", flat=True)
    if are_selected(distinct(stated)):
        return OtherMessages(queue, from_at, until_at, are_only_changed=True)
    others = ScheduledMessage.objects.filter(
        broker=broker,
        left_at=None,
        destination__in={one.row.destination for one in some},
        due_at__gte=from_at,
        due_at__lte=until_at + AFTER,
    )
    known = others.exclude(pk__in=[one.row.pk for one in some]).count()
    return OtherMessages(queue, from_at, until_at, known)
