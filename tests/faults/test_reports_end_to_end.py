"""Messages of four patterns on a real broker: the reports equal what the test itself counted."""

from __future__ import annotations

import csv
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from analytics import buckets, compacted, launch, nightly
from analytics.events import MessageEvent
from analytics.models import Gap, Run
from analytics.models.results import Reason
from analytics.results import read
from analytics.results.period import CUSTOM, Period
from tests.analytics.builders import logged
from tests.bench.lateness import read_recorded, run_bare
from tests.brokers import Vhost
from tests.builders import (
    address_of,
    applied_pair,
    applied_topology,
    eventually,
    make_broker,
    running,
)
from tests.faults.forking import forked
from tests.flood.counting import LineCount
from tests.flood.generator import Flood
from tests.publishing import publisher
from topology.broker.amqp.consumer import Consumer
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Queue
from topology.message import Publish, Route
from topology.models import Broker, Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels.params import Params as Levels
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.retry_ladder.params import Params as Ladder
from topology.patterns.retry_loop.form import parse as parse_loop
from topology.patterns.retry_pair.pattern import retry_pair

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.long]

MS, US = timedelta(milliseconds=1), timedelta(microseconds=1)
DELAYED, FAILING = 2500, {"pair": 700, "ladder": 700, "loop": 600}
SECONDS = 600.0
LONG_AFTER = "2100-01-01T00:00+00:00"


@dataclass
class Work:
    """A topology, its work queue, and the messages that this test sends to it."""

    topology: Topology
    queue: str
    exchange: str = ""
    delayed: list[tuple[str, Route]] = field(default_factory=list)
    failing: list[str] = field(default_factory=list)
    """Each name begins with the number of its rejections."""
    rejections: Counter[str] = field(default_factory=Counter)

    @property
    def messages(self) -> int:
        return len(self.delayed) + len(self.failing)

    @property
    def trips(self) -> int:
        return len(self.delayed) + sum(int(name[0]) for name in self.failing)


def make_works(vhost: Vhost, broker: Broker) -> list[Work]:
    chance = random.Random(17)

    def applied(kind: str, params: Any) -> Topology:
        return applied_topology(create_topology(None, broker, kind, params))

    def failing(kind: str) -> list[str]:
        return [f"{chance.choice((1, 2))} rejections, {kind} {n}" for n in range(FAILING[kind])]

    levels = Levels("own", "shop", 5, unit=100 * MS, queue_type="classic")
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("arrivals"))
    delays = [chance.randint(1, 20) * 100 * MS for _ in range(DELAYED)]
    pair = retry_pair.parse({"name": "pair", "delay": "500ms"})
    entry = Route("pair-retry", "pair")
    loop = parse_loop({"name": "loop", "delay": "400ms"})
    return [
        Work(
            applied("delay_levels", levels),
            "arrivals",
            delayed=[
                (f"0 level {n}", delay_levels.route(levels, delay, "arrivals"))
                for n, delay in enumerate(delays)
            ],
        ),
        Work(
            applied("retry_pair", pair),
            *("pair", "pair"),
            delayed=[(f"0 pair {n}", entry) for n in range(DELAYED)],
            failing=failing("pair"),
        ),
        Work(
            applied("retry_ladder", Ladder("ladder", (200 * MS, 400 * MS, 600 * MS))),
            *("ladder", "ladder"),
            failing=failing("ladder"),
        ),
        Work(
            applied("retry_loop", loop),
            *(loop.input_queue, loop.input_exchange),
            failing=failing("loop"),
        ),
    ]


def send_all(vhost: Vhost, works: Sequence[Work]) -> None:
    with publisher(address_of(vhost), "test") as channel:
        for work in works:
            key = work.queue
            for name in work.failing:
                stated = build_properties(message_id=name, delivery_mode=2)
                channel.publish(Publish(work.exchange, key, stated, b"{}"))
            for name, route in work.delayed:
                stated = build_properties(message_id=name, delivery_mode=2)
                sent = Publish(route.exchange, route.routing_key, stated, b"{}")
                channel.publish_by(route, sent)


def consume(vhost: Vhost, work: Work, stop: threading.Event) -> None:
    """Reject each message as often as its name says, then take it."""
    with Consumer(address_of(vhost), work.queue, prefetch=50) as consumer:
        while not stop.is_set():
            for delivery in consumer.batch(limit=50, limit_bytes=10**6, wait=0.2, linger=0):
                name = delivery.message.properties.message_id or ""
                if work.rejections[name] < int(name[0]):
                    work.rejections[name] += 1
                    consumer.reject(delivery)
                else:
                    consumer.ack(through=delivery.tag)


def exits(log: Path) -> int:
    events = logged(log) if log.exists() else []
    return sum(event.kind == "delivered" and event.attempt > 0 for event in events)


def late_by_bucket(events: Sequence[MessageEvent], topology: str) -> Counter[int]:
    """Of entries and exits that were both recorded as they came."""
    found: dict[tuple[str, int], dict[str, MessageEvent]] = {}
    for event in events:
        if event.topology == topology and event.attempt > 0:
            found.setdefault((event.message_id, event.attempt), {})[event.kind] = event
    trips = [(sides["scheduled"], sides["delivered"]) for sides in found.values()]
    return Counter(
        # In whole microseconds: 1003.15 - 1000 is less than 3.15, which begins a bucket.
        buckets.bucket_of(
            ((left.recorded_at - entered.recorded_at) // US - 1000 * entered.requested_delay_ms)
            / 1000
        )
        for entered, left in trips
        if entered.caught_up and left.caught_up
    )


def compute(log: Path, days: Sequence[Any]) -> None:
    """Compact all hours, as if the days were over, then compute the days from Parquet."""
    for day in days:
        with launch.scratch(log / launch.COMPACTION_SCRATCH) as work:
            arguments = ["--log", str(log), "--day", str(day), "--work", str(work)]
            arguments += [
                "--url",
                f"file://{log.parent}/parquet",
                "--now",
                "2100-01-01T00:00+00:00",
            ]
            launch.run_module(launch.COMPACTION_JOB, arguments, pulse=lambda *_: None)
        assert compacted.input_of(log, day).files == ()
    for day in days:
        nightly.run_day(day)


def test_reports_of_seven_thousand_messages_equal_the_tests_own_count(
    vhost: Vhost, tmp_path: Path, settings: Any, client: Client
) -> None:
    log = settings.EVENT_LOG = tmp_path / "log"
    settings.RESULTS_URL = f"file://{tmp_path}/results"
    broker = make_broker(vhost)
    works = make_works(vhost, broker)
    trips = sum(work.trips for work in works)
    with forked("worker", "--only", "recorder"), ExitStack() as stack:
        for work in works:
            stack.enter_context(running(partial(consume, vhost, work)))
        send_all(vhost, works)
        eventually(lambda: exits(log) >= trips, "every trip is in the log", seconds=SECONDS)
    events = logged(log)
    days = sorted({event.recorded_at.date() for event in events})
    compute(log, days)
    period = Period(CUSTOM, days[0], days[-1])
    measured = 0
    for work in works:
        slug = work.topology.slug
        total = read.report(period, [broker], read.Selection(topology=slug)).total
        wanted = Counter(int(name[0]) for name in work.failing)
        attempts = {1: len(work.failing), 2: wanted[2]} if work.failing else {}
        assert dict(work.rejections) == {name: int(name[0]) for name in work.failing}
        assert (total.fate("entered"), total.fate("delivered")) == (work.trips, work.trips)
        assert (total.messages, total.retried) == (work.messages, len(work.failing))
        assert total.by("attempts") == attempts
        assert total.outcome("left") == len(work.failing)
        assert total.late == late_by_bucket(events, slug)
        measured += total.measured
    unmeasured = (run.excluded.get(reason, 0) for run in Run.objects.all() for reason in Reason)
    assert measured + sum(unmeasured) == trips
    client.force_login(User.objects.create_superuser("admin"))
    query = {"from": str(days[0]), "to": str(days[-1])}
    text = client.get(reverse("analytics:report_table", args=["ledger"]), query).content.decode()
    *_, sums = csv.reader(StringIO(text))
    assert sums[:3] == ["Total", str(trips), str(trips)]


RATE, SECONDS_OF_FLOOD = 2000, 600


def test_ten_minutes_of_two_thousand_messages_a_second_are_within_their_stated_error(
    vhost: Vhost, tmp_path: Path, settings: Any
) -> None:
    """On a busy machine, beside a bare program of pika that measures a sample of them itself."""
    log = settings.EVENT_LOG = tmp_path / "log"
    settings.RESULTS_URL = f"file://{tmp_path}/results"
    topology = applied_pair(vhost)
    pair: dict[str, Any] = {"name": "0", "exchange": "orders-retry", "key": "orders", "headers": {}}
    pair |= {"due_header": "", "delay_ms": 500}
    flood = Flood(address_of(vhost), "orders-retry", "orders", RATE, SECONDS_OF_FLOOD)
    busy = [sys.executable, "-c", "while True: pass"]
    with forked("worker", "--only", "recorder"), ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            process = stack.enter_context(subprocess.Popen(busy))
            stack.callback(process.kill)
        flood.start()
        bare = run_bare(vhost.amqp_url, ["orders"], [pair], SECONDS_OF_FLOOD, 0.05)
        flood.join()
        assert flood.error is None
        sent = flood.sent + len(bare)
        count = LineCount(log)
        eventually(lambda: count.now() >= 2 * sent, "all is recorded", seconds=SECONDS)
    recorded = read_recorded(log)
    days = sorted(date.fromisoformat(one.name.removeprefix("date=")) for one in log.glob("date=*"))
    compute(log, days)
    period = Period(CUSTOM, days[0], days[-1])
    selection = read.Selection(topology=topology.slug)
    total = read.report(period, [topology.broker], selection).total
    # Nothing is lost and nothing counts twice.
    assert not Gap.objects.exists()
    assert (total.fate("entered"), total.fate("delivered")) == (sent, sent)
    assert (total.messages, total.retried) == (sent, 0)
    # What it could not measure it says.
    runs = Run.objects.filter(day__in=days)
    unmeasured = sum(run.excluded.get(reason, 0) for run in runs for reason in Reason)
    assert total.measured + unmeasured == sent
    # What was measured is off by no more than the error that the report states.
    both = sorted(recorded[name] - bare[name] for name in recorded.keys() & bare.keys())
    # What takes long to store has the time at which it came all the same: however busy the machine
    # is, some are measured. At half the rate nearly all were, at a load of 18 on two processors.
    assert total.measured > sent / 10
    assert len(both) > len(bare) / 20
    error = total.measure_error()
    assert error is not None
    assert both[int(0.99 * len(both))] <= error, (error, both[-1], total.measured)
