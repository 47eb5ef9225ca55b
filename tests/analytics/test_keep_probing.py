"""The background task of probes, with a stand-in for its consumer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Event
from typing import Any
from unittest.mock import MagicMock

import pytest

from analytics.models import Probe
from analytics.probes import keep_probing
from tests.builders import make_broker, make_pair
from tests.topology.builders import delivered
from topology import work
from topology.broker.amqp.frames import Delivery
from topology.broker.errors import NotFound, Unreachable
from topology.broker.properties.read import build_properties
from topology.message import Message
from topology.models import (
    Probing,
    QueueReplacement,
    ReplacementStep,
    State,
    Topology,
    Work,
    WorkState,
)
from topology.models.work import PROBES
from topology.operations import probes
from topology.operations.ownership import Refusal

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)


class Arrivals:
    """A consumer that has these deliveries once."""

    def __init__(self, *deliveries: Delivery) -> None:
        self._batches = [list(deliveries)] if deliveries else []
        self.acked: list[int] = []

    def __call__(self, *_: Any, **__: Any) -> Arrivals:
        return self

    def __enter__(self) -> Arrivals:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def batch(self, **_: Any) -> list[Delivery]:
        return self._batches.pop() if self._batches else []

    def ack(self, *, through: int) -> None:
        self.acked.append(through)


@pytest.fixture
def pair() -> Topology:
    made = make_pair(make_broker(), delay="5s")
    Topology.objects.update(probing=Probing.ON)
    work.create(PROBES, made.pk, broker=made.broker, user=None)
    return made


def sent(topology: Topology, ago: timedelta) -> Probe:
    at = datetime.now(UTC) - ago
    return Probe.objects.create(
        topology=topology, message_id=f"{ago}", delay=SECOND, created_at=at, sent_at=at
    )


def delivery(message_id: str) -> Delivery:
    properties = build_properties({}, message_id=message_id)
    return delivered(Message("", "", properties, b"", False), 1, datetime.now(UTC))


def keep(topology: Topology) -> None:
    claimed = work.claim([PROBES], "test")
    assert claimed is not None
    do = partial(keep_probing.keep_probing, topology=topology)
    work.attempt(do, claimed, stop=Event())


def test_arrivals_are_read_although_no_probe_can_be_sent(
    pair: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Unreachable("Gone.")

    monkeypatch.setattr(keep_probing, "send_probe", fail)
    monkeypatch.setattr(keep_probing, "BACKLOG", -SECOND)
    probe, late = sent(pair, timedelta(minutes=10)), sent(pair, timedelta(minutes=30))
    arrivals = Arrivals(delivery(probe.message_id))
    monkeypatch.setattr(keep_probing, "Consumer", arrivals)
    for _ in range(2):
        with pytest.raises(Unreachable, match="Gone"):
            keep(pair)
    assert arrivals.acked == [1]
    probe.refresh_from_db()
    late.refresh_from_db()
    assert probe.arrived_at
    assert late.overdue_at


@pytest.mark.parametrize("is_enabled_again", [True, False])
def test_probes_that_are_enabled_while_they_end_go_on(
    pair: Topology, monkeypatch: pytest.MonkeyPatch, is_enabled_again: bool
) -> None:
    Topology.objects.update(probing=Probing.ENDING)
    monkeypatch.setattr(keep_probing, "BACKLOG", -SECOND)
    monkeypatch.setattr(keep_probing, "Consumer", Arrivals())
    remove = probes.remove_probe_queue

    def enable_and_remove(topology: Topology, *arguments: Any) -> None:
        if is_enabled_again:
            Topology.objects.update(probing=Probing.ON)
        remove(topology, *arguments)

    monkeypatch.setattr(keep_probing, "remove_probe_queue", enable_and_remove)
    monkeypatch.setattr(probes, "Management", MagicMock())
    keep(pair)
    pair.refresh_from_db()
    expected = Probing.ON if is_enabled_again else Probing.OFF
    assert (pair.probing, bool(probes.open_work(pair))) == (expected, is_enabled_again)


def test_a_queue_replacement_puts_off_both_ends_of_probing(
    pair: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It copies bindings, so one that is made or deleted meanwhile would come back."""
    monkeypatch.setattr(keep_probing, "BACKLOG", -SECOND)
    monkeypatch.setattr(keep_probing, "Consumer", Arrivals())
    monkeypatch.setattr(probes, "Management", MagicMock())
    replacing = work.create("replace_queue", pair.pk, broker=pair.broker, user=None)
    step = ReplacementStep.REROUTING
    QueueReplacement.objects.create(topology=pair, queue="orders", step=step, work=replacing)
    Topology.objects.update(probing=Probing.ENDING, state=State.APPLIED)
    keep(pair)
    pair.refresh_from_db()
    assert pair.probing == Probing.ENDING
    sentence = "in progress: “orders”, switching a routing key to another queue. Wait"
    row = probes.open_work(pair)
    assert row is not None
    assert sentence in row.error
    with pytest.raises(Refusal, match=sentence):
        probes.start_probes(None, pair)
    work.cancel(replacing)
    keep(pair)
    assert pair.probing == Probing.OFF


def test_disabling_ends_although_the_queue_and_the_exchange_are_deleted(
    pair: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    management = MagicMock()
    management.return_value.__enter__.return_value.unbind.side_effect = NotFound("No exchange.")
    monkeypatch.setattr(keep_probing, "Consumer", MagicMock(side_effect=NotFound("No queue.")))
    monkeypatch.setattr(keep_probing, "send_probe", lambda topology: None)
    monkeypatch.setattr(probes, "Management", management)
    pair.own([obj.identity for obj in pair.probe_definitions])
    pair.save()
    sent(pair, timedelta(0))
    with pytest.raises(NotFound, match="No queue"):
        keep(pair)
    Topology.objects.update(probing=Probing.ENDING)
    keep(pair)
    pair.refresh_from_db()
    assert (pair.probing, probes.open_work(pair)) == (Probing.OFF, None)
    management.return_value.__enter__.return_value.unbind.assert_called()


@pytest.mark.parametrize("is_stopped", [True, False])
def test_the_work_of_a_deleted_topology_ends(
    pair: Topology, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    """Whether the cancel is read while probing or after the worker has stopped the task."""
    monkeypatch.setattr(keep_probing, "Consumer", Arrivals())
    stop = Event()

    def delete(topology: Topology) -> None:
        Topology.objects.update(state=State.DELETED, probing=Probing.OFF)
        for row in Work.objects.all():
            work.cancel(row)
        if is_stopped:
            stop.set()

    monkeypatch.setattr(keep_probing, "send_probe", delete)
    claimed = work.claim([PROBES], "test")
    assert claimed is not None
    work.attempt(partial(keep_probing.keep_probing, topology=pair), claimed, stop=stop)
    assert Work.objects.get().state == WorkState.CANCELLED


def test_messages_of_others_in_the_probe_queue_are_logged(
    pair: Topology, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Topology.objects.update(probing=Probing.ENDING)
    monkeypatch.setattr(keep_probing, "BACKLOG", -SECOND)
    monkeypatch.setattr(keep_probing, "Consumer", Arrivals(delivery("a stranger")))
    monkeypatch.setattr(probes, "Management", MagicMock())
    keep(pair)
    assert f"{pair.probe_queue}: messages without a probe: 1" in caplog.text
