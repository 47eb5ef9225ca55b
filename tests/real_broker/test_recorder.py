"""The recorder on a real broker, and the nightly run on the very log that it wrote."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from threading import Event

import pytest

from analytics import buckets, nightly
from analytics.log import LogError
from analytics.models import Gap, Minute, ScheduledMessage
from analytics.models.scheduled_message import measure_lateness
from analytics.recorder.record import record
from analytics.results import read
from analytics.results.period import CUSTOM, Period
from analytics.scheduled.queries import listing
from tests.analytics.builders import follow_log, logged
from tests.brokers import NEWEST, Vhost, every_generation
from tests.builders import address_of, applied_pair
from tests.publishing import publisher
from topology.broker.address import Address
from topology.broker.amqp.consumer import Consumer
from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.message import TRACKING_HEADER, Publish
from topology.models import Topology
from topology.operations.provision import apply

pytestmark = pytest.mark.django_db
DELAY_MS = 300
MESSAGES = 24
DELAYED = 6
SECONDS = 30.0


def send(address: Address, exchange: str, message_id: str, **headers: object) -> None:
    stated = build_properties(message_id=message_id, headers=headers)
    with publisher(address, "test") as channel:
        channel.publish(Publish(exchange, "orders", stated, b"{}"))


def record_until(
    topology: Topology, is_enough: Callable[[Mapping[str, object]], bool]
) -> Mapping[str, object]:
    """Record in this thread until the counters say that it is enough."""
    stop = Event()
    deadline = time.monotonic() + SECONDS
    last: Mapping[str, object] = {}

    def beat(counters: Mapping[str, object]) -> None:
        nonlocal last
        last = dict(counters)
        if is_enough(counters):
            stop.set()
        assert time.monotonic() < deadline, f"only {counters} after {SECONDS} seconds"

    record(topology.pk, stop=stop, beat=beat)
    return last


@dataclass
class Traffic(threading.Thread):
    """Publishes, and rejects each message as often as its number says; keeps its own count."""

    address: Address
    begin: Event = field(default_factory=Event)
    rejections: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)

    def __hash__(self) -> int:
        return id(self)

    def run(self) -> None:
        self.begin.wait(SECONDS)
        for number in range(MESSAGES):
            send(self.address, "orders", f"{number % 3} rejections, {number}")
        for number in range(DELAYED):
            send(self.address, "orders-retry", f"0 rejections, delayed {number}")
        self.work()

    def work(self) -> None:
        acked = 0
        with Consumer(self.address, "orders", prefetch=1) as consumer:
            while acked < MESSAGES + DELAYED:
                for delivery in consumer.batch(limit=1, limit_bytes=10_000, wait=1, linger=0):
                    name = delivery.message.properties.message_id or ""
                    if self.rejections[name] < int(name[0]):
                        self.rejections[name] += 1
                        consumer.reject(delivery)
                    else:
                        acked += 1
                        consumer.ack(through=delivery.tag)


@every_generation
def test_the_log_and_the_reports_agree_with_the_consumers_own_count(
    vhost: Vhost,
    event_log: Path,
    request: pytest.FixtureRequest,
    start_spark: Callable[[], None],
) -> None:
    topology = applied_pair(vhost, delay=f"{DELAY_MS}ms")
    traffic = Traffic(address_of(vhost))
    traffic.start()
    all_rejections = sum(number % 3 for number in range(MESSAGES))
    trips = all_rejections + DELAYED

    def is_enough(counters: Mapping[str, object]) -> bool:
        traffic.begin.set()
        return counters["recorded"] == MESSAGES + 2 * trips

    counters = record_until(topology, is_enough)
    traffic.join(SECONDS)
    assert traffic.rejections.total() == all_rejections
    assert counters["unknown"] == 0
    follow_log(event_log)
    events = logged(event_log)
    assert Counter(event.kind for event in events) == {
        "published": MESSAGES,
        "scheduled": trips,
        "delivered": trips,
    }
    died = Counter(event.message_id for event in events if event.death_reason == "rejected")
    assert died == +traffic.rejections
    attempts = Counter(event.attempt for event in events if event.death_reason == "rejected")
    assert attempts == {n: sum(c >= n for c in traffic.rejections.values()) for n in (1, 2)}
    caught_up = ScheduledMessage.objects.filter(caught_up=True)
    for row in caught_up:
        assert row.entered_at is not None
        assert row.left_at is not None
        assert row.entered_at <= row.left_at
        assert row.due_at == row.entered_at + row.requested_delay
    assert sum(minute.died for minute in Minute.objects.all()) == all_rejections
    # The night's job, 15 seconds long, reads the same lines from whichever broker they came.
    if request.node.callspec.params["broker_node"] == NEWEST:
        start_spark()
        the_reports_agree(topology, traffic, trips, events[0].recorded_at)


def the_reports_agree(topology: Topology, traffic: Traffic, trips: int, at: datetime) -> None:
    run = nightly.run_day(at.astimezone(UTC).date())
    assert (run.state, run.lines, run.malformed) == ("done", MESSAGES + 2 * trips, 0)
    report = read.report(Period(CUSTOM, run.day, run.day), [topology.broker])
    counted = ScheduledMessage.objects.filter(caught_up=True)
    found = [late for row in counted if (late := measure_lateness(row)) is not None]
    late_ms = [late.total_seconds() * 1000 for late in found]
    total = report.total
    assert total.measured == len(late_ms) > 0
    assert buckets.percentile(total.late, 0.5) == pytest.approx(median(late_ms), rel=0.28, abs=5)
    assert (total.messages, total.retried) == (MESSAGES + DELAYED, len(+traffic.rejections))
    assert total.by("attempts") == {
        attempt: sum(count >= attempt for count in traffic.rejections.values())
        for attempt in (1, 2)
    }
    assert (total.fate("entered"), total.fate("delivered")) == (trips, trips)
    assert total.outcome("left") == len(+traffic.rejections)


@pytest.mark.both_databases
def test_a_tracked_message_is_observed_to_arrive_and_how_late(
    vhost: Vhost, event_log: Path
) -> None:
    topology = applied_pair(vhost, delay=f"{DELAY_MS}ms")
    sent = False

    def is_enough(counters: Mapping[str, object]) -> bool:
        nonlocal sent
        if not sent:
            sent = True
            send(address_of(vhost), "orders-retry", "m1", **{TRACKING_HEADER: "t1"})
        return counters["recorded"] == 2

    record_until(topology, is_enough)
    follow_log(event_log)
    seen = listing.read_observations(["t1"]).get("t1")
    assert seen is not None
    assert seen.lateness is not None
    assert seen.arrived_at is not None
    assert seen.due_at is not None
    assert seen.entered_at is not None
    assert seen.lateness == seen.arrived_at - seen.due_at
    assert seen.entered_at < seen.arrived_at
    assert len(logged(event_log)) == 2


def test_what_could_not_be_written_stays_in_the_tap_and_is_recorded_later(
    vhost: Vhost, event_log: Path
) -> None:
    topology = applied_pair(vhost)
    for number in range(3):
        send(address_of(vhost), "orders-retry", f"m{number}")
    event_log.write_text("in the way")
    with pytest.raises(LogError, match="cannot write the event log"):
        record_until(topology, lambda counters: False)
    event_log.unlink()

    def entries() -> Counter[str]:
        return Counter(e.message_id for e in logged(event_log) if e.kind == "scheduled")

    record_until(topology, lambda counters: entries().total() >= 3)
    assert entries() == {"m0": 1, "m1": 1, "m2": 1}


def test_a_tap_that_was_deleted_is_named_and_leaves_a_gap_once_it_is_back(
    vhost: Vhost, event_log: Path
) -> None:
    topology = applied_pair(vhost)
    record_until(topology, lambda counters: True)
    with Management(address_of(vhost)) as management:
        management.delete_queue(topology.tap_queue, only_if_empty=False)
    with pytest.raises(NotFound, match=topology.tap_queue):
        record_until(topology, lambda counters: False)
    assert not Gap.objects.exists()
    apply(None, topology)
    record_until(topology, lambda counters: True)
    (gap,) = Gap.objects.all()
    assert "did not exist" in gap.why
    assert gap.from_at < gap.until_at
