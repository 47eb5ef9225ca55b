"""Reminders of the demo that wait, on a real broker."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from analytics.models import Slo
from delayboard.demo import traffic
from delayboard.demo.script import HOLD, LEVELS, REMINDERS, SHOP
from delayboard.demo.traffic import choose_delay, prepare, run_flow
from tests.brokers import Vhost
from tests.builders import address_of, eventually, make_broker, running
from topology.broker.management.client import Management
from topology.models import State, Topology
from topology.patterns.delay_levels.pattern import delay_levels
from topology.patterns.hold_queues.pattern import hold_queues

HOLDS = HOLD.params.delays
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reminders one after the other, each after the shortest delay."""
    monkeypatch.setattr(traffic, "PAUSE_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(traffic, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(traffic, "SELDOM", 0.0)


@pytest.mark.usefixtures("quick")
def test_reminders_wait_in_levels_and_in_hold_queues_that_are_made_for_them(vhost: Vhost) -> None:
    broker = make_broker(vhost)
    levels = replace(LEVELS, bits=(0.0, 0.0))
    with (
        running(lambda stop: run_flow(broker, levels, stop)),
        running(lambda stop: run_flow(broker, HOLD, stop)),
        Management(address_of(vhost)) as management,
    ):

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
    assert all(prepare(broker, flow) for flow in (HOLD, LEVELS, SHOP))
    assert [str(target) for target in Slo.objects.all()] == ["97 % within 1s of due"]
    levels = Topology.objects.get(params=delay_levels.store(LEVELS.params))
    out = delay_levels.route(LEVELS.params, timedelta(0), REMINDERS).declares
    assert {binding.identity for binding in out.bindings} <= levels.owned_identities
    assert Topology.objects.get(keep_bodies=True).params == delay_levels.store(SHOP.params)
    applied = {row.pk: row.applied_at for row in Topology.objects.all()}
    assert all(prepare(broker, flow) for flow in (HOLD, LEVELS, SHOP))
    assert {row.pk: row.applied_at for row in Topology.objects.all()} == applied
    Topology.objects.filter(kind=delay_levels.KIND).update(state=State.DELETED)
    assert [prepare(broker, flow) for flow in (LEVELS, SHOP)] == [None, None]
    assert prepare(broker, HOLD)


def test_delays_are_those_on_offer_or_seconds_to_minutes_and_seldom_hours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {choose_delay(HOLD) for _ in range(200)} == set(HOLDS)
    monkeypatch.setattr(traffic, "SELDOM", 0.0)
    short = [choose_delay(LEVELS) for _ in range(200)]
    assert timedelta(seconds=2) <= min(short) <= max(short) <= timedelta(minutes=7)
    monkeypatch.setattr(traffic, "SELDOM", 1.0)
    long = [choose_delay(LEVELS) for _ in range(200)]
    assert timedelta(hours=1) <= min(long) <= max(long) <= timedelta(hours=37)
