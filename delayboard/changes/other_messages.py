"""What else passes the forwarders while messages are changed: a part of the dry run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from analytics.models import ScheduledMessage
from delayboard.changes.check import LEAD, ChangeVerdict, bound_again_when
from delayboard.changes.select_messages import ALL, Selection, selector_of, selectors_of
from delayboard.models import ScheduledChange
from delayboard.models.scheduled_change import OPEN
from topology.content.text import count_of
from topology.delays import format_delay

# Time from the last change to the end of an interception, about.
AFTER = timedelta(seconds=2)


@dataclass(frozen=True)
class OtherMessages:
    """What else is forwarded: the messages known to be due for `queue` meanwhile, and more.

    With `are_only_changed` nothing else is: a header of each changed message has its id. With
    `have_same_delay` only messages with the delay of one that is changed. `bound_again_when`
    says when programs bind the queue again.
    """

    queue: str
    from_at: datetime
    until_at: datetime
    known: int = 0
    are_only_changed: bool = False
    have_same_delay: bool = False
    bound_again_when: tuple[str, ...] = ()

    @property
    def risk(self) -> str:
        """What such a program does to the messages meanwhile; "" where none is known."""
        seconds = ceil((self.until_at + AFTER - self.from_at).total_seconds())
        wait = format_delay(timedelta(seconds=seconds))
        what = "changed messages unchanged too" if self.are_only_changed else "messages twice"
        return " ".join(
            f"If {when} in these {wait}, it binds “{self.queue}” again. RabbitMQ then delivers "
            f"{what}, until the worker removes the binding, usually within a second. The list of "
            "changes reports it."
            for when in self.bound_again_when
        )

    @property
    def sentence(self) -> str:
        """What passes the worker, and what it means for them."""
        if self.are_only_changed:
            return (
                "RabbitMQ routes only the changed messages to the worker: each has its message id "
                "in a header."
            )
        these = count_of(self.known, "known message") + " and " if self.known else ""
        if self.have_same_delay:
            return (
                "RabbitMQ routes only messages with the delays of the changed messages to the "
                f"worker. The worker forwards {these}all other messages with these delays. They "
                "arrive a little later."
            )
        return (
            f"The worker forwards {these}all other messages that RabbitMQ routes to this queue. "
            "They arrive a little later."
        )


def count_other_messages(verdicts: Sequence[ChangeVerdict]) -> list[OtherMessages]:
    """What passes the forwarders besides, for each queue."""
    by_queue: dict[str, list[ChangeVerdict]] = defaultdict(list)
    for verdict in verdicts:
        if verdict.point is not None:
            by_queue[verdict.point.queue].append(verdict)
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
    rejects = any(one.point is not None and one.point.rejects for one in some)
    selection = ALL if rejects else Selection().adding(selector_of(one.row) for one in some)
    selection = selection.adding(selectors_of(others_changed))
    times = tuple(sorted({when for one in some if (when := bound_again_when(one.row))}))
    if not (selection.is_all or selection.keys):
        return OtherMessages(
            queue, from_at, until_at, are_only_changed=True, bound_again_when=times
        )
    others = ScheduledMessage.objects.filter(
        broker=broker,
        left_at=None,
        destination__in={one.row.destination for one in some},
        due_at__gte=from_at,
        due_at__lte=until_at + AFTER,
    )
    if not selection.is_all:
        others = others.filter(routing_key__in=selection.keys)
    changed = others_changed.exclude(message=None).values("message")
    known = others.exclude(pk__in=[one.row.pk for one in some]).exclude(pk__in=changed).count()
    is_same = not selection.is_all
    return OtherMessages(
        queue, from_at, until_at, known, have_same_delay=is_same, bound_again_when=times
    )
