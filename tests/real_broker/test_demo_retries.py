"""The demo's flaky consumers: what fails for ever is tried so often, then dropped or parked."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from delayboard.demo import traffic
from delayboard.demo.script import FLOWS, Flow
from delayboard.demo.traffic import make_message, prepare, run_flow, send
from tests.brokers import Vhost
from tests.builders import address_of, eventually, make_broker, running
from tests.publishing import publisher
from topology.broker.amqp.consumer import getter
from topology.message import Forwarder
from topology.models import Topology
from topology.transfer.forwarder import ForwarderCounts, wait

pytestmark = pytest.mark.django_db(transaction=True)
WORK = [flow for flow in FLOWS if flow.gives_back]
HOPELESS = b'{"hopeless": true}'
QUICK: Mapping[str, Mapping[str, str]] = {
    "retry_pair": {"name": "orders", "delay": "50ms"},
    "retry_loop": {"name": "sms", "delay": "200ms"},
    "retry_ladder": {"name": "invoices", "delays": "150ms, 300ms"},
    "delay_queues": {"queue": "webhooks", "delays": "1s"},
    "busy_wait": {"queue": "calls", "delays": "200ms, 400ms"},
    "quorum_retry": {"name": "payments", "shortest": "200ms", "longest": "400ms", "limit": "2"},
}
ATTEMPTS = {
    "retry_pair": 4,
    "retry_loop": 3,
    "retry_ladder": 3,
    "delay_queues": 3,
    "busy_wait": 4,
    "quorum_retry": 3,
}


def pass_on(vhost: Vhost, forwarder: Forwarder, stop: threading.Event) -> None:
    passing = ForwarderCounts()
    wait(
        address_of(vhost),
        forwarder,
        stop=stop,
        beat=lambda reported: None,
        passing=passing,
        window=500,
    )


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The bodies that a consumer worked on in vain; nothing else fails."""
    seen: list[bytes] = []

    def fails(body: bytes) -> bool:
        if body == HOPELESS:
            seen.append(body)
        return body == HOPELESS

    monkeypatch.setattr(traffic, "fails", fails)
    monkeypatch.setattr(traffic, "PAUSE_SECONDS", (1000.0, 1000.0))
    return seen


@pytest.mark.parametrize("wanted", WORK, ids=lambda one: one.kind)
def test_what_is_hopeless_is_tried_so_often_and_then_given_up(
    vhost: Vhost, tried: list[bytes], wanted: Flow
) -> None:
    quick = replace(wanted, params=wanted.pattern.parse(QUICK[wanted.kind]))
    broker, address = make_broker(vhost), address_of(vhost)
    if not prepare(broker, quick):
        assert wanted.kind == "quorum_retry"
        assert not Topology.objects.exists()
        return
    with ExitStack() as stack:
        stack.enter_context(running(lambda stop: run_flow(broker, quick, stop)))
        for one in quick.pattern.forwarders(quick.params):
            stack.enter_context(running(partial(pass_on, vhost, one)))
        channel = stack.enter_context(publisher(address, "test"))
        send(channel, quick, make_message(quick)[0], HOPELESS, timedelta(0))
        eventually(lambda: len(tried) >= ATTEMPTS[quick.kind], "it was tried to the end")
        parked = quick.dead or getattr(quick.params, "parking", "")
        if parked:
            source = stack.enter_context(getter(address, parked))
            parked_message = eventually(source.get, "it is parked")
            assert parked_message.message.body == HOPELESS
            source.ack([parked_message.tag])
    assert len(tried) == ATTEMPTS[quick.kind]
