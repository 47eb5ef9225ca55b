"""The demo's incidents on a real broker, and their removal."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from analytics.models import DayFigures, NightlyReport, Run
from analytics.models.run import GENERATED, RunState
from delayboard.demo import removal
from delayboard.demo.incidents import make_incidents, replay_refunds, show_incidents
from delayboard.demo.script import DEMO_BROKER, ORDERS, RETURNS, SHOP, WEBHOOKS
from delayboard.demo.traffic import prepare
from delayboard.models import DeadLetterQueue, MessageGroup, ReplayBatch
from tests.brokers import Vhost
from tests.builders import address_of, eventually, make_broker, make_pair, running
from tests.publishing import publisher
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.findings.find import find
from topology.message import Publish
from topology.models import AuditEntry, Broker, Topology
from topology.operations import provision
from topology.operations.destinations import restore_binding

pytestmark = pytest.mark.django_db(transaction=True)


def stage(vhost: Vhost) -> Broker:
    """The demo's broker with what the incidents need, and the incidents."""
    broker = make_broker(vhost, name=DEMO_BROKER)
    for flow in (SHOP, ORDERS, WEBHOOKS):
        prepare(broker, flow)
    make_incidents(broker)
    return broker


def count_acks(management: Management, queue: str) -> int:
    return int(management.queue(queue).get("message_stats", {}).get("ack", 0))


def test_the_incidents_can_be_looked_at_solved_and_removed(vhost: Vhost) -> None:
    User.objects.create_superuser("root")
    broker = stage(vhost)
    assert not replay_refunds(broker)
    group = MessageGroup.objects.get(exception="shop.PriceMissing")
    assert (group.parked, str(group.owner)) == (36, "root")
    assert group.note
    assert DeadLetterQueue.objects.filter(is_confirmed=True, parks_automatically=True).count() == 3

    with Management(address_of(vhost)) as management:
        found = {one.rule.id for one in find(observe(management))}
        assert "F01" in found
        levels = Topology.objects.get(keep_bodies=True)
        assert restore_binding(None, levels, RETURNS).created == 1
        with running(lambda stop: show_incidents(broker, stop)):
            acked = partial(count_acks, management, RETURNS)
            with publisher(address_of(vhost), "test") as channel:
                channel.publish(Publish("", RETURNS, build_properties(), b""))
            eventually(acked, "the shop takes what is delivered to the restored destination")
        pair = make_pair(broker, name="mine")
        provision.apply(None, pair)
        day = timezone.now().date() - timedelta(days=1)
        DayFigures.objects.create(day=day, broker=broker.slug)
        Run.objects.create(day=day, state=RunState.DONE, error=GENERATED)
        NightlyReport.objects.create(day=day, made_at=timezone.now(), html="")

        assert not removal.is_removed(broker)
        removal.remove_demo(None, broker)
        assert removal.is_removed(broker)
        left = {str(queue["name"]) for queue in management.queues()}
    assert left == {queue.name for queue in pair.definitions.queues} | {pair.tap_queue}
    for model in (MessageGroup, ReplayBatch, DayFigures, Run, NightlyReport):
        assert not model._default_manager.exists()
    assert AuditEntry.objects.get(action="demo removed").outcome == "done"
    assert not AuditEntry.objects.filter(outcome__startswith="failed").exists()
