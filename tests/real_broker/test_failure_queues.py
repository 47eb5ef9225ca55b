"""Queues that consumers publish failed messages to, found by x-death."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from analytics.recorder import firehose_switch as firehose
from delayboard.dead_letters.queues.failures import find_failed
from delayboard.models import FailureQueue
from tests.brokers import Vhost
from tests.browser.contents import dead_letters, declare
from tests.builders import eventually, make_broker, make_user
from tests.publishing import publisher
from tests.real_broker.holding import recording
from topology import snapshots
from topology.broker.properties.read import build_properties
from topology.message import Publish
from topology.models import AuditEntry, Role

pytestmark = pytest.mark.django_db(transaction=True)


def test_queues_with_failed_messages_are_proposed_with_the_reason(
    client: Client, vhost: Vhost
) -> None:
    broker = make_broker(vhost)
    user: User = make_user("ada", Role.ADMIN)
    client.force_login(user)
    declare(vhost, ["kept aside", "plain", "empty"])
    dead_letters(vhost, "kept aside", ["orders"], deaths=1)
    with publisher(broker.address, "test") as channel:
        channel.publish(Publish("", "plain", build_properties(), b"new"))

    def are_counted() -> bool:
        known = snapshots.fresh(broker).snapshot
        numbers = known.numbers if known else {}
        # Only queues that are known to have no consumer are checked.
        return all(
            name in numbers and numbers[name].messages and numbers[name].consumers == 0
            for name in ("kept aside", "plain")
        )

    eventually(are_counted, "the broker counts its messages")
    text = client.post(reverse("check_queues", args=[broker.slug]), follow=True).content.decode()
    assert "2 queues checked, 1 with failed messages." in text
    assert [row.queue for row in FailureQueue.objects.all()] == ["kept aside"]
    proposed = text[text.index("Probably dead-letter queues") : text.rindex("other queues")]
    assert "kept aside" in proposed
    assert "records a failure in another queue" in proposed
    assert "plain" not in proposed
    assert AuditEntry.objects.get(action="queues checked for failures").broker == broker
    known = snapshots.fresh(broker).snapshot
    assert known is not None
    assert known.numbers["kept aside"].messages == 1


def test_the_firehose_finds_queues_that_consumers_publish_failed_messages_to(
    vhost: Vhost, event_log: Path
) -> None:
    broker = make_broker(vhost)
    firehose.switch_on(make_user("ada", Role.ADMIN), broker)
    declare(vhost, ["parking", "plain"])
    death = {
        "queue": "orders",
        "reason": "rejected",
        "count": 1,
        "exchange": "",
        "routing-keys": [],
    }
    with recording(broker), publisher(broker.address, "test") as channel:
        channel.publish(Publish("", "plain", build_properties(), b"new"))
        channel.publish(Publish("", "parking", build_properties({"x-death": [death]}), b"failed"))
        eventually(lambda: find_failed(broker) == {"parking"}, "the queue is found")
