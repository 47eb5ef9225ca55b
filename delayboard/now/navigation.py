"""The pages of the header, which of them has something to do, and the broker they are for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any

from django.db import connection
from django.db.models import Aggregate, CharField, Count, QuerySet, Sum, Value

from delayboard.models import BatchState, MessageGroup, ReplayBatch
from delayboard.now.problems import WORST
from topology.models import Broker, Drift, FindingPeriod, MissingBinding, State
from topology.operations.finding_rows import count_open


@dataclass(frozen=True)
class Page:
    """A page by the name of its URL; `others` are pages that belong to it.

    `key` leads there after the key g. Of a page with `has_brokers` the address takes `?broker=`.
    """

    label: str
    url_name: str
    key: str
    others: tuple[str, ...] = ()
    has_brokers: bool = True


@dataclass(frozen=True)
class Badge:
    """A count of things to do, with its label; a bad one is highlighted."""

    words: str
    is_bad: bool = True
    number: int = 0


SCHEDULED = "analytics:scheduled"
DEAD_LETTERS = "dead_letters"
REPLAYS = "replays"
TOPOLOGIES = "topology:topologies"
FINDINGS = "topology:findings_overview"
_OF_SYSTEM = ("topology:brokers", "topology:audit", "retention", "alerts", "demo")
SYSTEM = Page("System", "system", "y", _OF_SYSTEM, has_brokers=False)
PAGES = (
    Page("Now", "now", "n"),
    Page("Scheduled", SCHEDULED, "s"),
    Page("Retrying", "retrying_anywhere", "t"),
    Page("Dead letters", DEAD_LETTERS, "d"),
    Page("Replays", REPLAYS, "r"),
    Page("Topologies", TOPOLOGIES, "o"),
    Page("Findings", FINDINGS, "f"),
    Page("Reports", "analytics:reports", "e"),
    Page("Publish", "publish", "p", ("publication",)),
    SYSTEM,
)
BADGES = (
    (SCHEDULED, Badge("stuck")),
    (DEAD_LETTERS, Badge("parked", is_bad=False)),
    (REPLAYS, Badge("paused")),
    (TOPOLOGIES, Badge("not in sync")),
    (FINDINGS, Badge("open")),
)


def count_badges(brokers: Collection[Broker], now: datetime) -> Mapping[str, Badge]:
    """URL name -> badge, where there is something to do for these brokers."""
    ids = {broker.pk for broker in brokers}
    numbers = Counter[str]()
    with connection.cursor() as cursor:
        cursor.execute(*_write_statement())
        for name, broker_id, number in cursor.fetchall():
            if broker_id in ids:
                numbers[name] += number
    found = {name: replace(badge, number=numbers[name]) for name, badge in BADGES}
    if numbers[FINDINGS]:
        found[FINDINGS] = _count_findings(brokers, now)
    return {name: badge for name, badge in found.items() if badge.number}


def _count_findings(brokers: Collection[Broker], now: datetime) -> Badge:
    findings, worst = 0, 0
    for counts in count_open(brokers, now).values():
        findings += sum(counts.values())
        worst += sum(number for severity, number in counts.items() if severity.key in WORST)
    words = f"open, {worst} of them {WORST[0]} or {WORST[1]}" if worst else "open"
    return Badge(words, is_bad=worst > 0, number=findings)


@cache
def _write_statement() -> tuple[str, tuple[Any, ...]]:
    """One query for all numbers by URL name and broker. Django writes it in 3 ms: once a process.

    Its number of findings has the muted ones too.
    """
    is_applied = {"topology__state": State.APPLIED}
    missing = MissingBinding.objects.filter(**is_applied)
    drifts = Drift.objects.filter(**is_applied)
    paused = ReplayBatch.objects.filter(state=BatchState.PAUSED)
    found = FindingPeriod.objects.filter(resolved_at=None)
    first, *others = (
        _group(missing, SCHEDULED, "topology__broker", Sum("stuck")),
        _group(MessageGroup.objects.all(), DEAD_LETTERS, "broker", Sum("parked")),
        _group(paused, REPLAYS, "broker", Count("pk")),
        _group(drifts, TOPOLOGIES, "topology__broker", Count("pk")),
        _group(found, FINDINGS, "broker", Count("pk")),
    )
    statement: tuple[str, tuple[Any, ...]] = first.union(*others, all=True).query.sql_with_params()
    return statement


def _group(rows: QuerySet[Any], name: str, broker: str, number: Aggregate) -> QuerySet[Any, Any]:
    named = rows.order_by().annotate(page=Value(name, CharField()))
    grouped: QuerySet[Any, Any] = named.values_list("page", broker).annotate(number=number)
    return grouped
