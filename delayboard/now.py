"""What the first page says: each broker, the duties, what waits, what was replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from analytics import scheduled
from delayboard.models import Duty, Publication, ReplayBatch
from topology import latest
from topology.broker.errors import alarm_sentence
from topology.definitions import TAP_PREFIX
from topology.latest import Latest
from topology.models import Broker, State, Topology


@dataclass(frozen=True)
class BrokerLine:
    """A broker, its last snapshot, and how many messages lie in it; None when unknown."""

    broker: Broker
    latest: Latest
    messages: int | None
    topologies: int


@dataclass(frozen=True)
class Overview:
    brokers: tuple[BrokerLine, ...]
    duties: tuple[Duty, ...]
    troubles: tuple[str, ...]
    waiting: int
    overdue: int
    publications: tuple[Publication, ...]
    batches: tuple[ReplayBatch, ...]


def overview(brokers: Sequence[Broker], now: datetime, max_age: timedelta) -> Overview:
    """Everything about these brokers that the first page shows."""
    known = latest.fresh_all(brokers, max_age)
    lines = tuple(_line(broker, one) for broker, one in zip(brokers, known, strict=True))
    duties = tuple(Duty.objects.filter(Q(broker__in=brokers) | Q(broker=None)))
    waits = scheduled.waiting(brokers, now=now)
    return Overview(
        brokers=lines,
        duties=duties,
        troubles=tuple(_troubles(lines, duties)),
        waiting=waits.count(),
        overdue=waits.filter(due_at__lt=now - timedelta(seconds=5)).count(),
        publications=tuple(Publication.objects.filter(broker__in=brokers)[:5]),
        batches=tuple(ReplayBatch.objects.filter(broker__in=brokers).select_related("work")[:5]),
    )


def _line(broker: Broker, known: Latest) -> BrokerLine:
    depths: list[int | None] = [None]
    if known.snapshot:
        numbers = known.snapshot.numbers.items()
        depths = [one.messages for name, one in numbers if not name.startswith(TAP_PREFIX)]
    messages = None if None in depths else sum(depth or 0 for depth in depths)
    topologies = Topology.objects.filter(broker=broker, state=State.APPLIED).count()
    return BrokerLine(broker, known, messages, topologies)


def _troubles(lines: Sequence[BrokerLine], duties: Sequence[Duty]) -> list[str]:
    told = []
    is_dead = not duties or all(duty.is_late for duty in duties)
    if is_dead:
        told.append("The worker is not running: nothing is recorded, replayed or reported.")
    told += [f"{line.broker.name}: {line.latest.error}" for line in lines if line.latest.error]
    for line in lines:
        if line.latest.snapshot and line.latest.snapshot.alarms:
            told.append(f"{line.broker.name}: {alarm_sentence(line.latest.snapshot.alarms)}")
    if is_dead:
        return told
    silent = {line.broker.pk for line in lines if line.latest.error}
    failing = [duty for duty in duties if duty.is_failing and duty.broker_id not in silent]
    told.extend(f"{duty.name} fails: {duty.last_error}" for duty in failing)
    late = [duty for duty in duties if duty.is_late and not duty.is_failing]
    told.extend(f"{duty.name} has given no sign of life for a while." for duty in late)
    return told
