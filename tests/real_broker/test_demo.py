"""What happens on the demo's broker, on a real one: orders that fail, reminders that wait."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta

import pytest

from delayboard.demo import reminders, traffic
from delayboard.demo.reminders import HOLD, HOLDS, LEVELS, REMINDERS, random_delay, remind
from delayboard.demo.seed import PARKED, WORK
from delayboard.demo.traffic import GIVE_UP_AFTER, work_on_orders
from tests.brokers import Vhost
from tests.builders import address_of, applied_pair, eventually, make_broker, running
from topology.broker.address import Address
from topology.broker.amqp.consumer import Getter, getter
from topology.broker.amqp.publisher import Publisher, publisher
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.deaths import read_history
from topology.definitions import Queue
from topology.message import Message, Publish
from topology.models import State, Topology
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.hold_queues.pattern import hold_queues

pytestmark = pytest.mark.django_db(transaction=True)
POISONED = 3


def all_from(source: Getter) -> list[Message]:
    found = []
    while (delivery := source.get()) is not None:
        found.append(delivery.message)
        source.ack(delivery)
    return found


def test_poisoned_orders_are_parked_after_three_failures_over_one_connection(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied_pair(vhost, name=WORK, delay="50ms")
    address = address_of(vhost)
    with Management(address) as management:
        management.declare_queue(Queue(PARKED))
    with publisher(address, "test") as channel:
        for number in range(POISONED):
            stated = build_properties(message_id=f"m{number}", delivery_mode=2)
            channel.publish(Publish(WORK, WORK, stated, b'{"currency": "???"}'))
    opened: list[str] = []

    def counted(
        address: Address, name: str, *, heartbeat: int
    ) -> AbstractContextManager[Publisher]:
        opened.append(name)
        return publisher(address, name, heartbeat=heartbeat)

    monkeypatch.setattr(traffic, "publisher", counted)
    parked: list[Message] = []
    with running(lambda stop: work_on_orders(address, stop)), getter(address, PARKED) as source:

        def are_parked() -> bool:
            parked.extend(all_from(source))
            return len(parked) >= POISONED

        eventually(are_parked, "all are parked")
    assert sorted(m.properties.message_id or "" for m in parked) == ["m0", "m1", "m2"]
    failures = [read_history(m.headers).count(WORK, "rejected") for m in parked]
    assert failures == [GIVE_UP_AFTER] * POISONED
    assert opened == ["demo consumer"]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reminders one after the other, each after the shortest delay."""
    monkeypatch.setattr(reminders, "PAUSE_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(reminders, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(reminders, "SHORT_BITS", (0.0, 0.0))
    monkeypatch.setattr(reminders, "SELDOM", 0.0)


@pytest.mark.usefixtures("quick")
def test_reminders_wait_in_levels_and_in_hold_queues_that_are_made_for_them(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    with running(lambda stop: remind(broker, stop)), Management(address_of(vhost)) as management:

        def waiting() -> bool:
            held = {str(queue["name"]) for queue in management.queues()}
            names = {f"delay.{wait // timedelta(milliseconds=1)}.reminders.mail" for wait in HOLDS}
            return names <= held

        eventually(waiting, "a hold queue stands for each delay", seconds=60)
        eventually(
            lambda: management.queue(REMINDERS).get("message_stats", {}).get("ack"),
            "one came through the levels, sooner than any hold queue lets it go",
            seconds=HOLDS[0].total_seconds(),
        )
    rows = {row.kind: row for row in Topology.objects.all()}
    assert {kind: row.state for kind, row in rows.items()} == {
        delay_levels.KIND: State.APPLIED,
        hold_queues.KIND: State.APPLIED,
    }


def test_preparing_again_makes_nothing_and_leaves_alone_what_was_torn_down(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    assert reminders.prepare(broker) == [HOLD, LEVELS]
    levels = Topology.objects.get(kind=delay_levels.KIND)
    out = delay_levels.route(LEVELS.params, timedelta(0), REMINDERS).declares
    assert {binding.identity for binding in out.bindings} <= levels.owned_identities
    applied = {row.pk: row.applied_at for row in Topology.objects.all()}
    assert reminders.prepare(broker) == [HOLD, LEVELS]
    assert {row.pk: row.applied_at for row in Topology.objects.all()} == applied
    Topology.objects.filter(kind=delay_levels.KIND).update(state=State.TORN_DOWN)
    assert reminders.prepare(broker) == [HOLD]


def test_delays_are_those_on_offer_or_seconds_to_minutes_and_seldom_hours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {random_delay(HOLD) for _ in range(200)} == set(HOLDS)
    monkeypatch.setattr(reminders, "SELDOM", 0.0)
    short = [random_delay(LEVELS) for _ in range(200)]
    assert timedelta(seconds=2) <= min(short) <= max(short) <= timedelta(minutes=7)
    monkeypatch.setattr(reminders, "SELDOM", 1.0)
    long = [random_delay(LEVELS) for _ in range(200)]
    assert timedelta(hours=1) <= min(long) <= max(long) <= timedelta(hours=37)
