"""Where failed messages of a real client end: Delayboard names the queue, and parks them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User

from delayboard.dead_letters.queues.candidates import candidates
from delayboard.dead_letters.queues.confirmed import decide
from delayboard.dead_letters.queues.peek import is_free, peek_queue
from tests.brokers import Vhost
from tests.builders import address_of, eventually, make_broker
from tests.outside.client_programs import CLIENTS, running
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.findings.find import LIVE_RULES, find
from topology.snapshot import Snapshot

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.sqlite]


@pytest.mark.generations("4.3")
def test_dramatiq_keeps_dead_letters_for_seven_days(vhost: Vhost) -> None:
    with running(CLIENTS["dramatiq"], vhost, hopeless=1, rounds=1, wait_ms=400) as written:
        written.await_ends(1)

    def seen() -> Snapshot | None:
        with Management(address_of(vhost)) as management:
            snapshot = observe(management)
        return snapshot if snapshot.numbers[dead].messages else None

    dead = "shop.orders.XQ"
    snapshot = eventually(seen, "RabbitMQ counts the dead letter")
    likely = [one for one in candidates(snapshot, ()) if one.is_likely]
    assert [(one.queue, one.deletes_after) for one in likely] == [(dead, timedelta(days=7))]
    (unread,) = [one for one in find(snapshot, LIVE_RULES) if one.rule.id == "L11"]
    assert unread.evidence[0].object[1] == dead
    broker, admin = make_broker(vhost), User.objects.create_superuser("ada", password="long enough")
    assert decide(admin, broker, dead, snapshot, is_confirmed=True).is_confirmed
    queue = snapshot.definitions.queue(dead)
    assert queue is not None
    assert is_free(queue, snapshot)
    (one,) = peek_queue(broker, queue, snapshot).peeked_messages
    assert one.history.first_failure
