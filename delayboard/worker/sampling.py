"""Samples of every minute: the depths of dead-letter queues and the counters of Now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from threading import Event

from delayboard.dead_letters.queues.growth import sample
from delayboard.models import CounterSample
from delayboard.now.board import BROKER_AGE, overview
from topology.models import Broker

Beat = Callable[[Mapping[str, object]], None]

EVERY = timedelta(minutes=1)
COUNTER_RETENTION = timedelta(hours=2)
CHECK_SECONDS = 2.0


def keep_sampling(stop: Event, beat: Beat) -> None:
    """Sample every minute until `stop` is set; `beat` gets sampled_at and sampled."""
    due_at = datetime.now(UTC)
    details: dict[str, object] = {}
    while not stop.is_set():
        now = datetime.now(UTC)
        if now >= due_at:
            details = {"sampled": sample(now), "sampled_at": now.isoformat()}
            sample_counters(now)
            due_at = now + EVERY
        beat(details)
        stop.wait(CHECK_SECONDS)


def sample_counters(now: datetime) -> None:
    """Store the known counters of each broker, and delete those older than COUNTER_RETENTION."""
    CounterSample.objects.filter(at__lt=now - COUNTER_RETENTION).delete()
    for broker in Broker.objects.all():
        figures = overview([broker], now, BROKER_AGE).counters
        numbers = {one.key: one.number for one in figures if one.number is not None}
        CounterSample.objects.create(broker=broker, at=now, numbers=numbers)
