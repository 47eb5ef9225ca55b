"""The figures over the board of Now, each with the list that it counts."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import Count, Min, QuerySet, Sum

from analytics.scheduled.summaries import counts
from analytics.scheduled.summaries.counts import MOST, SPANS, Scope
from delayboard.dead_letters.queues.confirmed import GROWTH_SPAN, SHORTEST, TOLERANCE
from delayboard.models import (
    BatchState,
    CounterSample,
    DeadLetterQueue,
    MessageGroup,
    ReplayBatch,
)
from delayboard.models.replay import ENDED_BATCH
from delayboard.now.lateness import Lateness, format_late
from delayboard.now.problems import WORST, Link, read_depth
from delayboard.now.throughput import FlowLine
from topology.content.text import count_text
from topology.findings.hit import Count as FindingCount
from topology.graph.live_values import UNKNOWN
from topology.models import Broker, MissingBinding
from topology.snapshots import Latest

# States of a batch to which nothing happens until somebody does something.
RESTING = (BatchState.DRAFT, BatchState.PAUSED, *ENDED_BATCH)


@dataclass(frozen=True)
class Counter:
    """`number` is None while it is unknown; `note` is what is beside it; bad needs somebody.

    `measure` is shown in place of a number. Before `counted_from` fewer things were counted, so
    that a change since then says nothing.
    """

    key: str
    label: str
    number: int | None
    link: Link
    note: str = ""
    is_bad: bool = False
    measure: str = ""
    counted_from: datetime | None = None

    @property
    def text(self) -> str:
        return self.measure or count_text(self.number)


def waits_counters(scope: Scope, missing: Iterable[MissingBinding]) -> list[Counter]:
    """What waits in delays, is due within an hour, is overdue, and is stuck.

    Stuck is what the problems and the badge say, with the messages that no list has.
    """
    overdue = counts.count(scope.overdue_rows())
    due = counts.count(scope.rows(scope.now, scope.now + SPANS["hour"]))
    stuck = sum(row.stuck for row in missing)
    numbers: tuple[tuple[str, str, int, dict[str, str]], ...] = (
        ("scheduled", "scheduled", scope.by_topology.total(), {}),
        ("due_within_hour", "due within 1 h", due, {"from": "now", "until": "+1h"}),
        ("overdue", "overdue", overdue, {"overdue": "1"}),
        ("stuck", "stuck", stuck, {"stuck": "1"}),
    )
    found = []
    for key, label, number, query in numbers:
        link = Link("", "analytics:scheduled", query=query)
        one = Counter(key, label, number, link, is_bad=number > 0 and key in ("overdue", "stuck"))
        if key in ("due_within_hour", "overdue") and number > MOST:
            one = replace(one, number=None, measure=counts.describe(number))
        found.append(one)
    return found


def retrying_counter(flows: Iterable[FlowLine], waiting: Mapping[int, int | None]) -> Counter:
    """What waits for its next attempt; None when that of a topology is not known."""
    retries = [one.topology.pk for one in flows if one.topology.pattern.ATTEMPTS_COUNTED_BY]
    numbers = [waiting[pk] for pk in retries]
    number = None if None in numbers else sum(one or 0 for one in numbers)
    return Counter("retrying", "retrying", number, Link("", "retrying_anywhere"))


def read_confirmed(brokers: Collection[Broker]) -> list[DeadLetterQueue]:
    return list(DeadLetterQueue.objects.filter(broker__in=brokers, is_confirmed=True))


def dead_letters_counter(
    rows: Collection[DeadLetterQueue], known: Mapping[int, Latest], parked: Iterable[int]
) -> Counter:
    """Parked messages, and those in confirmed queues; None when a broker does not report it."""
    depths = [read_depth(row, known[row.broker_id]) for row in rows]
    number = None if None in depths else sum(depth or 0 for depth in depths) + sum(parked)
    decided_at = max((row.decided_at for row in rows), default=None)
    link = Link("", "dead_letters")
    return Counter("dead", "dead letters", number, link, counted_from=decided_at)


def replays_counter(brokers: Collection[Broker]) -> Counter:
    link = Link("", "replays", query={"open": "1"})
    return Counter("replays", "replays running", sum(count_replays(brokers).values()), link)


def count_replays(brokers: Collection[Broker]) -> dict[int, int]:
    """Broker -> how many replays are running."""
    rows = ReplayBatch.objects.filter(broker__in=brokers).exclude(state__in=RESTING)
    return dict(rows.order_by().values_list("broker").annotate(number=Count("pk")))


def findings_counter(findings: Sequence[tuple[Broker, Sequence[FindingCount]]]) -> Counter:
    """Unknown until the worker has checked each broker."""
    rows = [one for _, some in findings for one in some]
    number = sum(one.number for one in rows)
    is_bad = any(one.key in WORST for one in rows if one.number)
    link = Link("", "topology:findings_overview")
    if any(broker.findings_checked_at is None for broker, _ in findings):
        return Counter("findings", "findings", None, link, "not checked yet")
    return Counter("findings", "findings", number, link, is_bad=is_bad)


def count_parked(brokers: Collection[Broker]) -> dict[tuple[int, str], int]:
    """Broker and the queue where they died -> how many parked messages."""
    rows = MessageGroup.objects.filter(broker__in=brokers, parked__gt=0).order_by()
    sums = rows.values_list("broker", "died_in").annotate(number=Sum("parked"))
    return {(broker, died_in): number for broker, died_in, number in sums}


def add_changes(
    figures: Iterable[Counter], brokers: Sequence[Broker], now: datetime
) -> tuple[Counter, ...]:
    """Each known counter with its change in an hour, or since all brokers had a sample of it."""
    samples = CounterSample.objects.filter(broker__in=brokers).order_by()
    first = _read_samples(samples, brokers, now)

    def add_change(one: Counter) -> Counter:
        since, before = first
        is_later = one.counted_from is not None and one.counted_from > since
        if one.number is not None and before and (is_later or one.key not in before):
            of_counter = samples.filter(numbers__has_key=one.key)
            if is_later:
                of_counter = of_counter.filter(at__gte=one.counted_from)
            since, before = _read_samples(of_counter, brokers, now)
        if one.number is None or one.key not in before:
            return one
        return replace(one, note=_change(one.number - before[one.key], now - since))

    return tuple(map(add_change, figures))


def _read_samples(
    samples: QuerySet[CounterSample], brokers: Sequence[Broker], now: datetime
) -> tuple[datetime, dict[str, int]]:
    """When, and the sums of the counters that each of these brokers had then."""
    firsts = dict(samples.values_list("broker").annotate(first_at=Min("at")))
    since = max((now - GROWTH_SPAN, *firsts.values()))
    if len(firsts) < len(brokers) or now - since < SHORTEST:
        return since, {}
    rows = samples.filter(at__gt=since - TOLERANCE, at__lte=since).order_by("at")
    numbers = dict(rows.values_list("broker", "numbers"))
    if len(numbers) < len(brokers):
        return since, {}
    keys = set.intersection(*(set(one) for one in numbers.values())) if numbers else set()
    return since, {key: sum(one[key] for one in numbers.values()) for key in keys}


def _change(number: int, time: timedelta) -> str:
    """The change of a counter: "+12 in 1 h", or "" for none."""
    if not number:
        return ""
    words = "1 h" if time >= GROWTH_SPAN else f"{time // timedelta(minutes=1)} min"
    return f"{'+' if number > 0 else '−'}{count_text(abs(number))} in {words}"


def lateness_counter(found: Mapping[int, Lateness]) -> Counter:
    """The p99 of all measured messages of the last hour, beside the number of missed targets.

    Its link leads to the table below, which has the last hour of each topology.
    """
    total = Tally[int]()
    for one in found.values():
        total.update(one.counts)
    targets = sum(one.hour is not None for one in found.values())
    missed = sum(one.is_missed for one in found.values())
    measured = count_text(sum(total.values()))
    note = (
        f"p50 {format_late(total, 0.5)} of {measured} in\u00a01\u00a0h"
        if total
        else "nothing measured"
    )
    if targets:
        note += f", {missed} of {targets} SLO{'s' * (targets > 1)} missed"
    link = Link("", "now", fragment="topologies")
    shown = format_late(total, 0.99) if total else UNKNOWN
    return Counter("lateness", "lateness p99", None, link, note, missed > 0, shown)
