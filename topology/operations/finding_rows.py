"""The rows of findings: when each appeared and was resolved, and which are muted.

And of what live rules report of queues, where RabbitMQ's numbers do not show it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import Count, Exists, OuterRef, Q
from django.utils import timezone

from topology import audit
from topology.content.text import make_encodable
from topology.findings.finding import Finding
from topology.findings.hit import Severity
from topology.models import Broker, FindingMute, FindingPeriod, QueueReport
from topology.operations.topology_rows import User
from topology.snapshot import QueueNumbers, Report, Snapshot

# Time within which a finding that returns is the same one: live numbers vary.
SAME_PERIOD = timedelta(minutes=10)

# Number of a row that is no finding: how many probes of Delayboard a queue may keep.
PROBES = "probes"


def record_findings(broker: Broker, found: Iterable[Finding], at: datetime) -> None:
    """Open a period for each finding that appeared, and end those of resolved findings."""
    present = {one.key: one for one in found}
    with transaction.atomic():
        Broker.objects.filter(pk=broker.pk).update(findings_checked_at=at)
        rows = FindingPeriod.objects.filter(broker=broker)
        known = {row.key: row for row in rows.filter(resolved_at=None)}
        rows.filter(pk__in=[row.pk for key, row in known.items() if key not in present]).update(
            resolved_at=at
        )
        recent = rows.filter(resolved_at__gte=at - SAME_PERIOD).order_by("resolved_at")
        known = {**{row.key: row for row in recent if row.key not in known}, **known}
        added, changed = [], []
        for key, one in present.items():
            row = known.get(key)
            if row is None:
                added.append(_fill(FindingPeriod(broker=broker, key=key, appeared_at=at), one))
            elif row.resolved_at is not None or (
                row.severity,
                row.title,
                row.objects_count,
            ) != (int(one.severity), make_encodable(one.title), len(one.objects)):
                row.resolved_at = None
                changed.append(_fill(row, one))
        FindingPeriod.objects.bulk_create(added, batch_size=500)
        fields = ["rule", "severity", "title", "objects_count", "resolved_at"]
        FindingPeriod.objects.bulk_update(changed, fields, batch_size=500)


def _fill(row: FindingPeriod, one: Finding) -> FindingPeriod:
    row.rule, row.severity = one.rule.id, int(one.severity)
    row.title, row.objects_count = make_encodable(one.title), len(one.objects)
    return row


def count_open(brokers: Collection[Broker], now: datetime) -> Mapping[int, Mapping[Severity, int]]:
    """Broker -> severity -> how many findings the worker last saw, without muted ones."""
    mutes = FindingMute.active(now).filter(broker=OuterRef("broker"), key=OuterRef("key"))
    rows = FindingPeriod.objects.filter(~Exists(mutes), broker__in=brokers, resolved_at=None)
    counts: dict[int, dict[Severity, int]] = defaultdict(dict)
    of_severity = rows.order_by().values_list("broker", "severity").annotate(Count("pk"))
    for broker_id, severity, number in of_severity:
        counts[broker_id][Severity(severity)] = number
    return counts


def find_pending(
    broker: Broker, snapshot: Snapshot, found: Iterable[Finding]
) -> list[FindingPeriod]:
    """Findings of the worker that this process cannot have yet, for want of earlier numbers."""
    if snapshot.has_trend:
        return []
    rows = FindingPeriod.objects.filter(broker=broker, resolved_at=None, rule__startswith="L")
    return list(rows.exclude(key__in=[one.key for one in found]))


def find_mutes(broker: Broker, now: datetime) -> dict[str, FindingMute]:
    """The active ones, by the key of their finding."""
    rows = FindingMute.active(now).filter(broker=broker).select_related("created_by")
    return {row.key: row for row in rows}


def mute_finding(
    user: User, broker: Broker, one: Finding, *, reason: str, until_at: datetime
) -> None:
    """Leave a finding out of the counts until then; a second call replaces the first."""
    details = {"reason": reason, "until": until_at.isoformat(), "finding": one.key}
    what = make_encodable(one.title)
    with (
        audit.recorded(user, "finding muted", broker=broker, what=what, details=details),
        transaction.atomic(),
    ):
        FindingMute.objects.filter(broker=broker, key=one.key).delete()
        FindingMute.objects.create(
            broker=broker,
            key=one.key,
            reason=reason,
            until_at=until_at,
            created_by_id=user.pk if user is not None else None,
        )


def unmute_finding(user: User, broker: Broker, key: str) -> bool:
    """Count it again from now on; False when it was not muted."""
    seen = FindingPeriod.objects.filter(broker=broker, key=key).values_list("title", flat=True)
    details = {"finding": key}
    what = seen.first() or key
    with audit.recorded(user, "finding unmuted", broker=broker, what=what, details=details):
        deleted, _ = FindingMute.objects.filter(broker=broker, key=key).delete()
    return bool(deleted)


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
