"""Killing the worker at any moment: each probe that was sent is recorded once, and none is overdue
that only waited for a worker.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
from pytest_django import Settings

from analytics.facts import write_facts
from analytics.models import Fact, Probe
from analytics.probes import keep_probing
from delayboard.worker.tasks import probes_of
from tests.analytics.builders import logged
from tests.brokers import Vhost
from tests.builders import applied_pair, eventually
from tests.faults.forking import forked_call
from topology import work
from topology.broker.amqp.depths import live_depths
from topology.models import Topology
from topology.operations.probes import start_probes

pytestmark = pytest.mark.django_db(transaction=True)
SECOND = timedelta(seconds=1)


def probe_at_once(topology_id: int, *, is_sending: bool) -> int:
    """The worker's task, in a hurry."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with (
        patch.object(keep_probing, "is_due", lambda topology, now: is_sending),
        patch.object(keep_probing, "WAIT_SECONDS", 0.02),
        patch.object(keep_probing, "BACKLOG", SECOND / 10),
        patch.object(keep_probing, "LONG_OVERDUE", SECOND / 2),
        patch.object(work, "LEASE", SECOND),
    ):
        task = probes_of(Topology.objects.get(pk=topology_id), f"test {time.monotonic()}")
        task.run(stop=stop, beat=lambda details: None)
    return 0


def probe_sending(topology_id: int) -> int:
    return probe_at_once(topology_id, is_sending=True)


def probe_reading(topology_id: int) -> int:
    return probe_at_once(topology_id, is_sending=False)


@pytest.mark.parametrize("kills", [4, pytest.param(30, marks=pytest.mark.long)])
def test_a_probe_is_recorded_once_and_never_lost_wrongly(
    vhost: Vhost, tmp_path: Path, settings: Settings, kills: int
) -> None:
    settings.EVENT_LOG = tmp_path / "log"
    chance = random.Random(17)
    made = applied_pair(vhost, delay="200ms")
    start_probes(None, made)
    for number in range(kills):
        before = max(Probe.objects.values_list("pk", flat=True), default=0)
        with forked_call(probe_sending, made.pk) as fork:
            more = Probe.objects.filter(pk__gt=before)
            eventually(more.exists, "a probe is sent")
            time.sleep(chance.uniform(0, 0.3))
            fork.send_signal(signal.SIGKILL)
        assert Probe.objects.count() > number
    with forked_call(probe_reading, made.pk) as fork:
        in_flight = Probe.in_flight(made).filter(sent_at__isnull=False)
        eventually(lambda: not in_flight.exists(), "all that were sent have arrived")
        queue = made.probe_queue
        eventually(lambda: live_depths(made.broker.address, [queue])[queue] == 0, "none is left")
        fork.send_signal(signal.SIGTERM)
        assert fork.wait(10) == 0
    assert not Probe.objects.exclude(overdue_at=None, abandoned_at=None).exists()
    stop = threading.Event()
    stop.set()
    write_facts(stop=stop, beat=lambda details: None)
    assert not Fact.objects.exists()
    arrived = set(Probe.objects.filter(arrived_at__isnull=False).values_list("message_id", "delay"))
    for kind in ("scheduled", "delivered"):
        of_kind = [event for event in logged(settings.EVENT_LOG) if event.kind == kind]
        assert len(of_kind) == len(arrived)
        assert {event.message_id for event in of_kind} == {name for name, _ in arrived}
