"""Busy wait on real brokers: times, laps, order, restarts, a queue that is gone."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from math import ceil
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from django.contrib.auth.models import User

from analytics.recorder import firehose_switch as firehose
from analytics.recorder.copies import content_of
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, applied_topology, eventually, make_broker
from tests.publishing import publisher
from tests.real_broker.holding import recording, seen
from tests.real_broker.refusing import FULL
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.depths import live_depths
from topology.broker.amqp.frames import Delivery
from topology.broker.errors import BrokerError, NotFound
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Queue
from topology.message import DOUBLED_HEADER, PUBLISHED_AT_HEADER, Publish
from topology.models import Topology
from topology.operations import provision
from topology.operations.answers import NackCheck
from topology.operations.ownership import Refusal
from topology.operations.topology_rows import create_topology
from topology.patterns.busy_wait.params import Params
from topology.patterns.busy_wait.pattern import busy_wait
from topology.transfer.forwarder import ForwarderCounts, wait

MS = timedelta(milliseconds=1)
LAP = 100 * MS
WORK = Params("work", (LAP, 3 * LAP))
(FORWARDER,) = busy_wait.forwarders(WORK)


@pytest.fixture
def management(vhost: Vhost) -> Iterator[Management]:
    """The topology's queues and the processing queue."""
    with Management(address_of(vhost)) as session:
        for queue in (*busy_wait.definitions(WORK).queues, Queue("work")):
            session.declare_queue(queue)
        yield session


@contextmanager
def waiting(vhost: Vhost) -> Iterator[ForwarderCounts]:
    """A forwarder at work, as a task runs it; its counters."""
    stop, passing, failed = Event(), ForwarderCounts(), list[BaseException]()

    def run() -> None:
        try:
            wait(
                address_of(vhost),
                FORWARDER,
                stop=stop,
                beat=lambda reported: None,
                passing=passing,
                window=500,
            )
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    yield passing
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    assert not failed, failed


def delay(vhost: Vhost, laps: Mapping[str, int], **headers: Any) -> dict[str, int]:
    """Publish each name with so many laps to wait; when each is due."""
    dues = {}
    with publisher(address_of(vhost), "test") as channel:
        for name, number in laps.items():
            route = busy_wait.route(WORK, number * LAP, "work")
            stamped = route.make_headers(time.time_ns() // 1_000_000)
            dues[name] = stamped["due-at-ms"]
            properties = build_properties(stamped | headers, message_id=name, delivery_mode=2)
            channel.publish(Publish(route.exchange, route.routing_key, properties, name.encode()))
    return dues


def arrived(vhost: Vhost, number: int, queue: str = "work") -> list[Delivery]:
    got: list[Delivery] = []
    with Consumer(address_of(vhost), queue) as consumer:
        until = time.monotonic() + 30
        while len(got) < number and time.monotonic() < until:
            for delivery in consumer.batch(limit=100, limit_bytes=10**6, wait=0.5, linger=0):
                consumer.ack(through=delivery.tag)
                got.append(delivery)
    return got


def name_of(delivery: Delivery) -> str:
    return delivery.message.properties.message_id or ""


def late_ms(delivery: Delivery) -> float:
    due: int = delivery.message.headers["due-at-ms"]
    return delivery.received_at.timestamp() * 1000 - due


@every_generation
def test_messages_arrive_after_any_number_of_laps_never_early_and_none_is_dropped(
    vhost: Vhost, management: Management
) -> None:
    laps = {f"m{number}": number for number in (*range(1, 6), 12, 60)}
    with waiting(vhost) as passing:
        dues = delay(vhost, laps, tag="kept")
        got = arrived(vhost, len(laps))
    assert Counter(map(name_of, got)) == dict.fromkeys(laps, 1)
    for delivery in got:
        headers = delivery.message.headers
        assert late_ms(delivery) >= 0
        assert headers["due-at-ms"] == dues[name_of(delivery)]
        assert (headers["tag"], delivery.message.body) == ("kept", name_of(delivery).encode())
        assert not {name for name in headers if name.startswith(("x-death", "x-first", "x-last"))}
    reported = passing.counters()
    assert (reported["passed"], reported["returned"], reported["without_due_header"]) == (
        len(laps),
        0,
        0,
    )
    # A slow machine makes fewer and longer laps.
    assert passing.looped >= 7
    assert isinstance(reported["late_p99_ms"], int)


def test_a_long_one_does_not_hold_up_short_ones(vhost: Vhost, management: Management) -> None:
    with waiting(vhost):
        delay(vhost, {"long": 600})
        delay(vhost, {f"m{number:02}": 3 for number in range(30)})
        got = map(name_of, arrived(vhost, 30))
    assert sorted(got) == [f"m{number:02}" for number in range(30)]


def test_one_without_a_due_header_goes_on_and_is_counted(
    vhost: Vhost, management: Management
) -> None:
    with publisher(address_of(vhost), "test") as channel:
        for stated in ({}, {"due-at-ms": "soon"}):
            channel.publish(Publish("", "work-delay", build_properties(stated), b"odd"))
    with waiting(vhost) as passing:
        assert len(arrived(vhost, 2)) == 2
        eventually(lambda: passing.without_due_header == 2, "both are counted")


def test_a_user_id_is_taken_off_since_the_forwarder_may_be_another_user(
    vhost: Vhost, management: Management
) -> None:
    properties = build_properties({"due-at-ms": 1}, user_id=vhost.username, app_id="a")
    with publisher(address_of(vhost), "test") as channel:
        channel.publish(Publish("", "work-delay", properties, b"x"))
    with waiting(vhost):
        (delivery,) = arrived(vhost, 1)
    assert delivery.message.properties.user_id is None
    assert delivery.message.properties.app_id == "a"


def test_what_waits_while_no_forwarder_runs_is_passed_on_by_the_next(
    vhost: Vhost, management: Management
) -> None:
    laps = {f"m{number}": 3 + number % 4 for number in range(40)}
    with waiting(vhost) as first:
        delay(vhost, laps)
        eventually(lambda: first.looped > 10, "the first one is at work")
    # On a slow machine the first of them are due before it ends.
    lying = (FORWARDER.queue, "work")
    eventually(
        lambda: sum(management.queue(queue).get("messages", 0) for queue in lying) == 40,
        "all lie there",
    )
    with waiting(vhost) as second:
        got = arrived(vhost, 40)
        eventually(lambda: first.passed + second.passed == 40, "the second one passes them on")
    assert Counter(map(name_of, got)) == dict.fromkeys(laps, 1)


def test_several_forwarders_share_the_work_and_double_nothing(
    vhost: Vhost, management: Management
) -> None:
    laps = {f"m{number}": 2 + number % 3 for number in range(60)}
    with waiting(vhost) as one, waiting(vhost) as other:
        delay(vhost, laps)
        got = arrived(vhost, 60)
        eventually(lambda: one.passed + other.passed == 60, "all are counted")
    assert Counter(map(name_of, got)) == dict.fromkeys(laps, 1)


def test_without_the_processing_queue_nothing_is_lost_and_it_goes_on_when_it_is_back(
    vhost: Vhost, management: Management
) -> None:
    delay(vhost, {"due": 1, "later": 80})
    management.delete_queue("work", only_if_empty=False)
    passing, reported = ForwarderCounts(), list[Mapping[str, object]]()
    with pytest.raises(
        BrokerError, match="The queue “work” does not exist, so its messages remain"
    ):
        wait(
            address_of(vhost),
            FORWARDER,
            stop=Event(),
            beat=reported.append,
            passing=passing,
            window=500,
        )
    assert passing.returned == reported[-1]["returned"] == 1
    management.declare_queue(Queue("work"))
    with waiting(vhost):
        got = arrived(vhost, 2)
    assert list(map(name_of, got)) == ["due", "later"]


@pytest.mark.django_db
def test_a_processing_queue_that_is_full_keeps_the_rest_waiting(
    vhost: Vhost, management: Management
) -> None:
    management.delete_queue("work", only_if_empty=False)
    full = Arguments({"x-max-length": 1, "x-overflow": "reject-publish"})
    management.declare_queue(Queue("work", arguments=full))
    laps = {f"m{number}": 1 for number in range(5)}
    delay(vhost, laps)
    eventually(lambda: management.queue(FORWARDER.queue).get("messages") == 5, "all lie there")
    refused = r"“work” is full and rejected the message. .* remain in “work-busy-wait”"
    with pytest.raises(BrokerError, match=refused):
        wait(
            address_of(vhost),
            FORWARDER,
            stop=Event(),
            beat=lambda reported: None,
            passing=ForwarderCounts(),
            window=500,
            explain_nack=NackCheck(make_broker(vhost)).settle,
        )
    (first,) = arrived(vhost, 1)
    management.delete_queue("work", only_if_empty=True)
    management.declare_queue(Queue("work"))
    with waiting(vhost):
        rest = arrived(vhost, 4)
    assert Counter(map(name_of, [first, *rest])) == dict.fromkeys(laps, 1)


@every_generation
@pytest.mark.django_db
def test_what_is_nacked_may_have_arrived_and_is_forwarded_again_marked(
    vhost: Vhost, management: Management
) -> None:
    """The full queue dead-letters what it rejects."""
    management.delete_queue("work", only_if_empty=False)
    full = {
        **FULL,
        "x-overflow": "reject-publish-dlx",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "overflow",
    }
    management.declare_queue(Queue("overflow"))
    management.declare_queue(Queue("work", arguments=Arguments(full)))
    delay(vhost, {"m": 1})
    with pytest.raises(BrokerError, match="It may have arrived in “work”"):
        wait(
            address_of(vhost),
            FORWARDER,
            stop=Event(),
            beat=lambda reported: None,
            passing=ForwarderCounts(),
            window=500,
            explain_nack=NackCheck(make_broker(vhost)).settle,
        )
    management.delete_queue("work", only_if_empty=True)
    management.declare_queue(Queue("work"))
    with waiting(vhost):
        (again,) = arrived(vhost, 1)
    assert live_depths(address_of(vhost), ["overflow"]) == {"overflow": 1}
    assert again.message.headers[DOUBLED_HEADER] == "1"


def test_a_forwarder_whose_own_queue_goes_says_so(vhost: Vhost, management: Management) -> None:
    reported: list[Mapping[str, object]] = []
    failed: list[BrokerError] = []

    def run() -> None:
        try:
            wait(
                address_of(vhost),
                FORWARDER,
                stop=Event(),
                beat=reported.append,
                passing=ForwarderCounts(),
                window=500,
            )
        except BrokerError as error:
            failed.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    eventually(lambda: reported, "it is at work")
    management.delete_queue(FORWARDER.queue, only_if_empty=False)
    thread.join(60)
    (error,) = failed
    assert isinstance(error, NotFound)
    assert "“work-busy-wait” was deleted" in str(error)


def applied(vhost: Vhost) -> Topology:
    return applied_topology(create_topology(None, make_broker(vhost), busy_wait.KIND, WORK))


@pytest.mark.django_db
def test_it_is_applied_beside_the_processing_queue_verified_and_torn_down(vhost: Vhost) -> None:
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("work"))
        topology = applied(vhost)
        made = {queue.name for queue in observe(management).declared.queues}
        assert made == {"work", "work-delay", "work-busy-wait"}
        with waiting(vhost):
            eventually(
                lambda: provision.check(None, topology).holds, "it holds when its forwarder is seen"
            )
        delay(vhost, {"m": 600})
        eventually(lambda: management.queue(FORWARDER.queue).get("messages") == 1, "it waits")
        with pytest.raises(Refusal, match="The topology holds 1 message "):
            provision.remove(None, topology)
        provision.remove(None, topology, typed_name=topology.name)
        left = {queue.name for queue in observe(management).declared.queues}
    assert left == {"work"}


@pytest.mark.django_db(transaction=True)
def test_the_firehose_tells_one_entry_and_one_exit_however_many_laps_lie_between(
    vhost: Vhost, event_log: Path
) -> None:
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("work"))
    topology = applied(vhost)
    admin = User.objects.create_superuser("ada", password="a long enough password")
    firehose.switch_on(admin, topology.broker)
    now_ms = time.time_ns() // 1_000_000
    with recording(topology.broker), waiting(vhost) as passing:
        dues = delay(vhost, {"m": 30}, **{PUBLISHED_AT_HEADER: now_ms})
        (delivery,) = arrived(vhost, 1)
        eventually(lambda: seen(event_log, topology=topology.slug, kind="delivered"), "it is told")
    assert passing.looped > 1
    reported = sorted(seen(event_log, topology=topology.slug), key=lambda event: event.recorded_at)
    assert [(event.kind, event.message_id) for event in reported] == [
        ("scheduled", "m"),
        ("delivered", "m"),
    ]
    entry, leaving = reported
    # In whole laps.
    asked = LAP * ceil((dues["m"] - now_ms) * MS / LAP)
    assert entry.requested_delay_ms == leaving.requested_delay_ms == asked / MS
    assert entry.content_id == leaving.content_id == content_of(delivery.message)
