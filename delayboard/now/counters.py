"""The figures over the board of Now, each with the list that it counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count, Q, Sum

from analytics.scheduled.queries import listing
from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.counts import Scope
from analytics.scheduled.summaries.histogram import SPANS
from delayboard.dead_letters.queues.growth import SPAN, growths
from delayboard.models import (
    BatchState,
    DeadLetterQueue,
    MessageGroup,
    ParkedMessage,
    ParkedState,
    ReplayBatch,
)
from delayboard.models.replay import ENDED_BATCH
from delayboard.now.problems import WORST, Link
from delayboard.now.throughput import FlowLine
from topology.findings.counts import Count as FindingCount
from topology.graph.live_values import count_text
from topology.latest import Latest
from topology.models import Broker
from topology.operations.finding_rows import count_change

# Nothing happens to these until somebody does something.
RESTING = (BatchState.DRAFT, BatchState.PAUSED, *ENDED_BATCH)


@dataclass(frozen=True)
class Counter:
    """`number` is None while it is unknown; `note` is what is beside it; bad needs somebody.

    `measure` is shown in place of a number.
    """

    key: str
    label: str
    number: int | None
    link: Link
    note: str = ""
    is_bad: bool = False
    measure: str = ""

    @property
    def text(self) -> str:
        return self.measure or count_text(self.number)

    @property
    def cells(self) -> dict[str, str]:
        key = f"count/{self.key}"
        return {key: self.text, f"{key}/note": self.note}


@dataclass(frozen=True)
class Waits:
    """How many messages wait, how many are due within an hour, overdue, and stuck of these."""

    waiting: int
    soon: int
    overdue: int
    stuck: int = 0


def count_waits(scope: Scope) -> Waits:
    hour_on = scope.now + SPANS["hour"]
    points = [scope.now - listing.OVERDUE_AFTER, scope.now, hour_on, None]
    overdue, due, soon, waiting = counts.before(scope, points)
    return Waits(waiting, soon - due, overdue, counts.count_stuck(scope))


def waits_counters(waits: Waits, flows: Sequence[FlowLine]) -> list[Counter]:
    """What waits in delays."""
    page = "analytics:scheduled"
    return [
        Counter(
            "scheduled",
            "scheduled",
            waits.waiting,
            Link("", page),
            _flow_change(flows),
        ),
        Counter(
            "soon",
            "due within 1 h",
            waits.soon,
            Link("", page, query={"from": "now", "until": "+1h"}),
        ),
        Counter(
            "overdue",
            "overdue",
            waits.overdue,
            Link("", page, query={"overdue": "1"}),
            is_bad=waits.overdue > 0,
        ),
        Counter(
            "stuck",
            "stuck",
            waits.stuck,
            Link("", page, query={"stuck": "1"}),
            is_bad=waits.stuck > 0,
        ),
    ]


def retrying_counter(flows: Iterable[FlowLine], waiting: Mapping[int, tuple[int, int]]) -> Counter:
    """What waits for its next attempt."""
    retries = [one for one in flows if one.topology.pattern.ATTEMPTS_COUNTED_BY]
    number = sum(waiting.get(one.topology.pk, (0, 0))[0] for one in retries)
    return Counter(
        "retrying", "retrying", number, Link("", "retrying_anywhere"), _flow_change(retries)
    )


def dead_letters_counter(
    known: Mapping[int, Latest], parked: Iterable[int], scope: Scope
) -> Counter:
    """Parked messages, and those in confirmed queues; None when a broker does not report it."""
    rows = list(DeadLetterQueue.objects.filter(broker__in=known, is_confirmed=True))
    depths = {row.pk: read_depth(row, known[row.broker_id]) for row in rows}
    is_known = None not in depths.values()
    number = sum(depth or 0 for depth in depths.values()) + sum(parked)
    grown = growths(depths, scope.now)
    change = sum(one.change for one in grown.values())
    is_measured = bool(rows) and is_known and len(grown) == len(rows)
    return Counter(
        "dead",
        "dead letters",
        number if is_known else None,
        Link("", "dead_letters"),
        _change(change + _change_of_parked(known, scope.now)) if is_measured else "",
    )


def replays_counter(brokers: Collection[Broker]) -> Counter:
    rows = ReplayBatch.objects.filter(broker__in=brokers).exclude(state__in=RESTING)
    link = Link("", "replays", query={"open": "1"})
    return Counter("replays", "replays running", rows.count(), link)


def findings_counter(
    findings: Sequence[tuple[Broker, Sequence[FindingCount]]], now: datetime
) -> Counter:
    """Unknown until the worker has checked each broker."""
    rows = [one for _, some in findings for one in some]
    number = sum(one.number for one in rows)
    is_bad = any(one.key in WORST for one in rows if one.number)
    link = Link("", "topology:findings_overview")
    if any(broker.findings_checked_at is None for broker, _ in findings):
        return Counter("findings", "findings", None, link, "not checked yet")
    change = count_change([broker for broker, _ in findings], now - SPAN)
    return Counter("findings", "findings", number, link, _change(change), is_bad)


def count_parked(brokers: Collection[Broker]) -> dict[tuple[int, str], int]:
    """Broker and the queue where they died -> how many parked messages."""
    rows = MessageGroup.objects.filter(broker__in=brokers, parked__gt=0).order_by()
    sums = rows.values_list("broker", "died_in").annotate(number=Sum("parked"))
    return {(broker, died_in): number for broker, died_in, number in sums}


def read_depth(row: DeadLetterQueue, known: Latest) -> int | None:
    """0 for a queue that no longer exists."""
    if known.snapshot is None:
        return None
    numbers = known.snapshot.numbers.get(row.queue)
    return numbers.messages if numbers else 0


def _change_of_parked(known: Collection[int], now: datetime) -> int:
    """How many more are parked than an hour ago, in the database."""
    parked = Q(state=ParkedState.PARKED)
    found = ParkedMessage.objects.filter(broker__in=known, state_at__gt=now - SPAN).aggregate(
        come=Count("pk", filter=parked),
        gone=Count("pk", filter=~parked & Q(parked_at__lte=now - SPAN)),
    )
    return int(found["come"] - found["gone"])


def _flow_change(flows: Sequence[FlowLine]) -> str:
    """How many more wait in these topologies; "" where entries or exits are not all counted."""
    if not flows or any(one.unknown or one.not_observed for one in flows):
        return ""
    return _change(sum(one.flow.hour.entered - one.flow.hour.left for one in flows))


def _change(number: int) -> str:
    if not number:
        return ""
    return f"{'+' if number > 0 else '−'}{count_text(abs(number))} in 1 h"
