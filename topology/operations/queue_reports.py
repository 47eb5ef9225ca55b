"""The rows of what live rules report of queues, where RabbitMQ's numbers do not show it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from topology.content.text import make_encodable
from topology.models import Broker, QueueReport
from topology.snapshot import QueueNumbers, Report, Snapshot

# Not a rule: how many probes of Delayboard a queue may keep.
PROBES = "probes"


def with_reports(broker: Broker, snapshot: Snapshot) -> Snapshot:
    """The snapshot with the reports of its broker that hold now."""
    rows = QueueReport.objects.filter(broker=broker, until_at__gt=timezone.now())
    # The last one of a queue is what the worker counted, which is exact.
    reports = {
        (row.rule, row.queue): Report(row.rule, row.queue, row.number, row.sentence)
        for row in rows.order_by("-is_peeked", "queue")
    }
    if not reports:
        return snapshot
    numbers = {
        queue: replace(snapshot.numbers.get(queue, QueueNumbers()), probes=one.number)
        for (rule, queue), one in reports.items()
        if rule == PROBES
    }
    return replace(
        snapshot, reports=tuple(reports.values()), numbers={**snapshot.numbers, **numbers}
    )


def replace_counted(broker: Broker, reports: Iterable[Report], until_at: datetime) -> None:
    """What the worker counts, in the place of what it counted before."""
    _replace(broker, reports, until_at, is_peeked=False)


def replace_peeked(broker: Broker, queue: str, report: Report | None, until_at: datetime) -> None:
    """What the last peek into a queue showed; None for nothing."""
    _replace(broker, [report] if report else [], until_at, is_peeked=True, queue=queue)


def _replace(
    broker: Broker,
    reports: Iterable[Report],
    until_at: datetime,
    *,
    is_peeked: bool,
    **chosen: str,
) -> None:
    rows = [
        QueueReport(
            broker=broker,
            rule=one.rule,
            queue=make_encodable(one.queue),
            number=one.number,
            sentence=make_encodable(one.sentence),
            until_at=until_at,
            is_peeked=is_peeked,
        )
        for one in reports
    ]
    with transaction.atomic():
        replaced = Q(is_peeked=is_peeked, **chosen) | Q(until_at__lte=timezone.now())
        known = QueueReport.objects.filter(replaced, broker=broker)
        if rows or known.exists():
            known.delete()
            QueueReport.objects.bulk_create(rows)
