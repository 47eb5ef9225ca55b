"""Where reading the whole vhost takes long, what publishes reads only what it needs."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import pytest

from delayboard.dead_letters.replay.send_batch import replay
from delayboard.models import BatchState
from delayboard.models.publication import Sent
from delayboard.publishing.publish_job import KIND, attend, request_job
from delayboard.publishing.publish_message import OutgoingMessage, predict, send
from tests.brokers import Vhost
from tests.builders import address_of, make_broker, make_user
from tests.delayboard.builders import a_route, started
from tests.real_broker.replaying import arrived, shop, worked_off
from topology import snapshots
from topology.broker.management.client import Management
from topology.definitions import TAP_PREFIX, Binding, Queue
from topology.message import Route
from topology.models import Broker, Role, WorkState
from topology.snapshot import Snapshot

pytestmark = pytest.mark.django_db(transaction=True)


def know_slow(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Snapshot:
    """The broker is known, and a read of it took 25 seconds: the test fails at another one."""
    snapshot = snapshots.poll(broker, 20).snapshot
    assert snapshot is not None
    known = snapshots._latest[broker.pk]
    slow = replace(known, snapshot=replace(snapshot, poll_seconds=25.0))
    monkeypatch.setitem(snapshots._latest, broker.pk, slow)

    def refuse(management: Management) -> NoReturn:
        raise AssertionError("The whole vhost is read.")

    monkeypatch.setattr(Management, "bindings", refuse)
    return snapshot


def test_a_message_and_a_job_are_published(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> None:
    shop(vhost)
    user, broker = make_user("ada", Role.OPERATOR), make_broker(vhost)
    prediction = predict(know_slow(broker, monkeypatch), "orders", "orders")
    outgoing = OutgoingMessage(Route("orders", "orders"), b"{}")
    row = send(user, broker, outgoing, prediction)
    assert (row.sent, row.error) == (Sent.CONFIRMED, "")
    again = OutgoingMessage(Route("orders", "orders"), b"{}")
    job = request_job(user, broker, again, prediction, number=3, rate=100)
    worked_off(KIND, attend)
    job.work.refresh_from_db()
    assert (job.work.state, job.work.error) == (WorkState.DONE, "")
    arrived(vhost, number=4)


def test_a_tap_that_is_newer_than_the_snapshot_counts(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop(vhost)
    user, broker = make_user("ada", Role.OPERATOR), make_broker(vhost)
    prediction = predict(know_slow(broker, monkeypatch), "orders", "orders")
    tap = Queue(f"{TAP_PREFIX}orders")
    with Management(address_of(vhost)) as management:
        management.declare_queue(tap)
        management.bind(Binding("orders", tap.name, "orders"))
        management.delete_queue("orders", only_if_empty=True)
    row = send(user, broker, OutgoingMessage(Route("orders", "orders"), b"{}"), prediction)
    assert "No queue but a tap of Delayboard receives the message" in row.error


def test_a_replay_is_sent(vhost: Vhost, monkeypatch: pytest.MonkeyPatch) -> None:
    shop(vhost)
    user, broker = make_user("ada", Role.OPERATOR), make_broker(vhost)
    know_slow(broker, monkeypatch)
    batch = started(user, broker, [b"1", b"2"], a_route("orders", "orders"))
    worked_off("replay", replay)
    batch.refresh_from_db()
    assert (batch.state, batch.done) == (BatchState.DONE, 2)
    arrived(vhost, number=2)
