"""What the page of retries says of messages that a consumer rejects, on real brokers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest
from django.urls import reverse

from analytics.models import ScheduledMessage
from analytics.recorder.record import record
from tests.analytics.builders import follow_log
from tests.brokers import Vhost
from tests.builders import address_of, applied_topology, make_broker
from tests.publishing import publisher
from tests.site.page_setup import signed_in, text_of
from topology.broker.amqp.consumer import Consumer
from topology.broker.properties.read import build_properties
from topology.message import Publish
from topology.models import Role, Topology
from topology.operations.topology_rows import create_topology
from topology.patterns.retry_loop.pattern import retry_loop

pytestmark = pytest.mark.django_db
SECONDS = 30.0


def reject_one(vhost: Vhost, queue: str) -> None:
    with Consumer(address_of(vhost), queue, prefetch=1) as consumer:
        (got,) = consumer.batch(limit=1, limit_bytes=10**6, wait=60, linger=0)
        consumer.reject(got)


def recorded(topology: Topology, event_log: Path, entries: int) -> None:
    """Record in this thread until so many entries are in the index."""
    stop = Event()
    deadline = time.monotonic() + SECONDS

    def beat(_: Mapping[str, object]) -> None:
        follow_log(event_log)
        if ScheduledMessage.objects.filter(entered_at__isnull=False).count() >= entries:
            stop.set()
        assert time.monotonic() < deadline

    record(topology.pk, stop=stop, beat=beat)


def test_a_message_rejected_twice_is_in_round_two_and_says_when_it_comes_back(
    vhost: Vhost, event_log: Path
) -> None:
    broker = make_broker(vhost)
    params = retry_loop.parse({"name": "a", "delay": "5s"})
    topology = applied_topology(create_topology(None, broker, retry_loop.KIND, params))
    with publisher(address_of(vhost), "test") as channel:
        stated = build_properties(message_id="order 4711", delivery_mode=2)
        channel.publish(Publish(params.input_exchange, "", stated, b"{}"))
    reject_one(vhost, params.input_queue)
    recorded(topology, event_log, 1)
    client = signed_in(Role.VIEWER)
    address = reverse("retrying", args=[broker.slug])
    first = text_of(client.get(address))
    assert "order 4711" in first
    assert "retry 1" in first
    reject_one(vhost, params.input_queue)
    recorded(topology, event_log, 2)
    row = ScheduledMessage.objects.get(left_at=None)
    assert row.due_at is not None
    assert row.entered_at is not None
    assert row.due_at - row.entered_at == timedelta(seconds=5)
    text = text_of(client.get(address))
    assert "retry 2" in text
    assert "retry 1" not in text
    assert f'<time datetime="{row.due_at.isoformat()}"' in text
    assert f"rejected 2 times in {params.input_queue}" in text
