"""Messages that are overdue behind one with a longer TTL in the same queue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime

from analytics.buckets import LONG_OVERDUE
from analytics.models import ScheduledMessage
from analytics.models.scheduled_message import WAITING
from analytics.observation import observe
from topology.content.text import count_of
from topology.findings.rules.live import BLOCKED
from topology.models import Broker, State, Topology
from topology.patterns.pattern import ParamsError
from topology.snapshot import Report


def find_blocked(broker: Broker, now: datetime) -> Iterator[Report]:
    """One for each queue; only where taps see what leaves, and the recorder reads them."""
    applied = list(Topology.objects.filter(broker=broker, state=State.APPLIED))
    observed = observe(applied, now)
    seen = {
        row.pk: row for row in applied if row.observes_arrivals and not observed[row.pk].is_silent
    }
    late = ScheduledMessage.objects.filter(
        WAITING, topology__in=seen, due_at__lt=now - LONG_OVERDUE
    )
    for pk, queue in late.order_by().values_list("topology", "queue").distinct():
        # A row that no longer reads says so on its own page.
        with suppress(ParamsError):
            if report := _find_blocked(seen[pk], queue, now):
                yield report


def _find_blocked(topology: Topology, queue: str, now: datetime) -> Report | None:
    rows = ScheduledMessage.objects.filter(WAITING, topology=topology, queue=queue)
    first = rows.filter(due_at__gt=now).order_by("entered_at", "pk").first()
    # A message that waits in several queues may have left this one.
    if first is None or len(topology.pattern.waits(topology.parsed, first.requested_delay)) > 1:
        return None
    late = rows.filter(due_at__lt=now - LONG_OVERDUE, entered_at__gt=first.entered_at)
    if not (number := late.count()):
        return None
    messages = count_of(number, "message", "is")
    sentence = (
        f"{messages} overdue by a minute or more in “{queue}”, behind one that is due at "
        f"{first.due_at:%Y-%m-%d %H:%M:%S} UTC."
    )
    return Report(BLOCKED.id, queue, number, sentence)
