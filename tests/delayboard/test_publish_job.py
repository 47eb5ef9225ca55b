"""When a publish job asks the broker for alarms, and whether a queue gets its messages."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from delayboard.models import PublishJob
from delayboard.publishing import publish_job
from delayboard.publishing.publish_job import KIND, Messages
from topology import work
from topology.broker.management.client import Management
from topology.definitions import Definitions
from topology.models import Broker
from topology.operations.answers import TapCheck


def test_a_slow_broker_is_not_asked_again_at_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    checks = 0

    def answer_late(*asked: object) -> str:
        nonlocal now, checks
        now, checks = now + 4 * publish_job.CHECK_SECONDS, checks + 1
        return ""

    clock = SimpleNamespace(monotonic=lambda: now, time_ns=time.time_ns)
    monkeypatch.setattr(publish_job, "time", clock)
    monkeypatch.setattr(Management, "alarms", lambda management: [])
    monkeypatch.setattr(publish_job, "find_known", lambda broker: Definitions())
    monkeypatch.setattr(TapCheck, "explain_loss", answer_late)
    own = work.create(KIND, broker.pk, broker=broker, user=None)
    claimed = work.claim_this(own, "worker")
    assert claimed is not None
    job = PublishJob.objects.create(broker=broker, work=own, number=1, rate=1, routing_key="work")
    messages = Messages(job, work.lease_of(claimed))
    messages.check()
    messages.turn(lambda: None)
    assert checks == 1
    now += 2 * publish_job.CHECK_SECONDS
    messages.turn(lambda: None)
    assert checks == 2
