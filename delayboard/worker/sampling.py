"""Samples of every minute: the depths of dead-letter queues and the counters of Now."""

from __future__ import annotations

from datetime import UTC, datetime

from delayboard.dead_letters.queues.growth import sample
from delayboard.models import CounterSample
from delayboard.now.board import BROKER_AGE, overview
from topology.models import Broker

EVERY_SECONDS = 60.0


def sample_all(**_: object) -> dict[str, object]:
    """Sample now; returns sampled_at and sampled, how many queues."""
    now = datetime.now(UTC)
    sampled = sample(now)
    sample_counters(now)
    return {"sampled": sampled, "sampled_at": now.isoformat()}


def sample_counters(now: datetime) -> None:
    """Store the known counters of each broker."""
    for broker in Broker.objects.all():
        figures = overview([broker], now, BROKER_AGE).counters
        numbers = {one.key: one.number for one in figures if one.number is not None}
        CounterSample.objects.create(broker=broker, at=now, numbers=numbers)
