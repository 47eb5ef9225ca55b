"""Messages behind one with a longer TTL, on real brokers: by a peek, and by the list."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from analytics.models import Recording
from analytics.scheduled.summaries.destinations import find_blocked
from tests.analytics.builders import follow_log, logged
from tests.brokers import Vhost, newest_generation
from tests.builders import address_of, applied_pair, eventually, make_broker, make_user
from tests.publishing import publisher
from tests.real_broker.test_recorder import record_until
from topology.broker.amqp.depths import live_depths
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Queue
from topology.findings.find import LIVE_RULES, find
from topology.message import Publish
from topology.models import Role
from topology.operations.finding_rows import with_reports

pytestmark = [pytest.mark.django_db(transaction=True), newest_generation]

LATE = 30
LONG_MS = 600_000
TO_WORK = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}


def send(vhost: Vhost, exchange: str, key: str, *expirations: str) -> None:
    with publisher(address_of(vhost), "test") as channel:
        for expiration in expirations:
            properties = build_properties(expiration=expiration or None)
            channel.publish(Publish(exchange, key, properties, b"{}"))


def depth(vhost: Vhost, name: str) -> int:
    return live_depths(address_of(vhost), [name])[name]


def test_a_peek_finds_the_messages_that_are_late_behind_one(vhost: Vhost, client: Client) -> None:
    broker = make_broker(vhost)
    with Management(address_of(vhost)) as management:
        for name in ("hold", "quick"):
            management.declare_queue(Queue(name, arguments=Arguments(TO_WORK)))
        management.declare_queue(Queue("work"))
        send(vhost, "", "hold", str(LONG_MS), *["1000"] * LATE)
        send(vhost, "", "quick", "1000")
        eventually(lambda: depth(vhost, "work") == 1, "the TTL of those that were sent before")
        assert depth(vhost, "hold") == LATE + 1

        def find_now() -> dict[str, str]:
            seen = with_reports(broker, observe(management))
            earlier_at = seen.taken_at - timedelta(minutes=1)
            seen = replace(seen, earlier=seen.numbers, earlier_at=earlier_at)
            return {one.rule.id: one.evidence[0].sentence for one in find(seen, LIVE_RULES)}

        waiting = f"{LATE + 1} messages wait in “hold”, which has no queue TTL and no consumer."
        eventually(lambda: find_now().get("L12") == waiting, "RabbitMQ has counted them")
        assert "L06" not in find_now()
        client.force_login(make_user("ann", Role.OPERATOR, broker))
        page = client.post(reverse("dead_letter_queue", args=[broker.slug]) + "?name=hold").text
        late = (
            f"{LATE} of the first {LATE + 1} messages in “hold” wait behind a message with a "
            f"longer TTL. The longest TTL is 10m. {LATE} of them had expired, and RabbitMQ removed "
            "them during the peek."
        )
        assert find_now()["L06"] == late
        assert f"{LATE} of them had expired" in page
        # Where they were to go; the first one waits for its time.
        eventually(lambda: depth(vhost, "work") == LATE + 1, "they arrive")
        assert depth(vhost, "hold") == 1


def test_the_list_counts_the_messages_that_are_late_behind_one(
    vhost: Vhost, event_log: Path
) -> None:
    topology = applied_pair(vhost, delay="10m")
    send(vhost, "orders-retry", "orders", "", *["1000"] * LATE)
    record_until(topology, lambda counters: counters["recorded"] == LATE + 1)
    follow_log(event_log)
    first, *others = logged(event_log)
    assert {one.requested_delay_ms for one in others} == {1000}
    assert first.requested_delay_ms == LONG_MS
    assert list(find_blocked(topology.broker, timezone.now())) == []
    later = timezone.now() + timedelta(minutes=2)
    Recording.objects.update(read_at=later)
    (report,) = find_blocked(topology.broker, later)
    assert report.number == LATE
    assert first.due_at is not None
    assert f"behind one that is due at {first.due_at:%Y-%m-%d %H:%M:%S} UTC" in report.sentence
    assert depth(vhost, "orders-retry") == LATE + 1
