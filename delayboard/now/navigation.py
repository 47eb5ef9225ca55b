"""The pages of the header, which of them has something to do, and the broker they are for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Sum

from delayboard.models import BatchState, MessageGroup, ReplayBatch
from delayboard.now.problems import WORST
from topology.models import Broker, Drift, MissingBinding, State
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

    number: int
    words: str
    is_bad: bool = True


SYSTEM = Page(
    "System",
    "system",
    "y",
    ("topology:brokers", "topology:audit", "retention", "alerts", "demo"),
    has_brokers=False,
)
PAGES = (
    Page("Now", "now", "n"),
    Page("Scheduled", "analytics:scheduled", "s"),
    Page("Retrying", "retrying_anywhere", "t"),
    Page("Dead letters", "dead_letters", "d"),
    Page("Replays", "replays", "r"),
    Page("Topologies", "topology:topologies", "o"),
    Page("Findings", "topology:findings_overview", "f"),
    Page("Reports", "analytics:reports", "e"),
    Page("Publish", "publish", "p", ("publication",)),
    SYSTEM,
)


def count_badges(brokers: Collection[Broker], now: datetime) -> Mapping[str, Badge]:
    """URL name -> badge, where there is something to do for these brokers; five small queries."""
    applied = {"topology__broker__in": brokers, "topology__state": State.APPLIED}
    stuck = MissingBinding.objects.filter(**applied).aggregate(n=Sum("stuck", default=0))["n"]
    parked = MessageGroup.objects.filter(broker__in=brokers).aggregate(n=Sum("parked", default=0))
    paused = ReplayBatch.objects.filter(broker__in=brokers, state=BatchState.PAUSED).count()
    findings, worst = 0, 0
    for counts in count_open(brokers, now).values():
        findings += sum(counts.values())
        worst += sum(number for severity, number in counts.items() if severity.key in WORST)
    open_findings = f"open, {worst} of them {WORST[0]} or {WORST[1]}" if worst else "open"
    found = {
        "analytics:scheduled": Badge(stuck, "stuck"),
        "dead_letters": Badge(parked["n"], "parked", is_bad=False),
        "replays": Badge(paused, "paused"),
        "topology:topologies": Badge(Drift.objects.filter(**applied).count(), "not in sync"),
        "topology:findings_overview": Badge(findings, open_findings, is_bad=worst > 0),
    }
    return {name: badge for name, badge in found.items() if badge.number}
