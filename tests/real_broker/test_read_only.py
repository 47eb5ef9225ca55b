"""A read-only broker: nothing of it changes, recording goes on, and begun work goes on after."""

from __future__ import annotations

from io import StringIO
from threading import Thread

import pytest
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command
from django.db import connection

from delayboard.dead_letters.replay import batch_state, send_batch
from delayboard.models import Publication
from tests.brokers import Vhost
from tests.builders import applied_pair, eventually, make_broker, make_user
from tests.real_broker.replaying import (
    adds_up,
    arrived,
    at_rest,
    draft,
    is_empty,
    park,
    rejected,
    shop,
    worked_off,
)
from topology import snapshots
from topology.models import Broker, ReadOnly, Role
from topology.operations import provision

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("event_log")]
NUMBER = 30


def switch(broker: Broker, *, on: bool) -> None:
    Broker.objects.filter(pk=broker.pk).update(is_read_only=on)


def test_commands_and_operations_change_nothing(vhost: Vhost) -> None:
    pair = applied_pair(vhost)
    switch(pair.broker, on=True)
    pair.refresh_from_db()
    before = snapshots.poll(pair.broker, 20).snapshot
    assert before is not None
    to_itself = [f"--broker={pair.broker.slug}", "--routing-key=orders", "--body={}"]
    for command in (
        ["teardown", pair.slug],
        ["publish", *to_itself],
        ["publish", *to_itself, "--count=2", "--rate=5"],
    ):
        with pytest.raises(CommandError, match=r"is read-only\. An administrator can end this\."):
            call_command(*command, stdout=StringIO(), stderr=StringIO())
    with pytest.raises(ReadOnly):
        provision.remove(None, pair, typed_name=pair.name)
    after = snapshots.poll(pair.broker, 20).snapshot
    assert after is not None
    assert after.definitions == before.definitions
    assert not Publication.objects.filter(sent="confirmed").exists()
    switch(pair.broker, on=False)
    pair.refresh_from_db()
    provision.remove(None, pair, typed_name=pair.name)


def test_a_replay_waits_in_its_middle_and_sends_each_message_once(vhost: Vhost) -> None:
    shop(vhost)
    broker = make_broker(vhost)
    user: User = make_user("ann", Role.OPERATOR)
    rejected(vhost, *(f"m{number}" for number in range(NUMBER)))
    batch = draft(user, park(user, broker, NUMBER), rate=15)
    batch_state.start(user, batch, despite_verdict=True)

    def switch_in_the_middle() -> None:
        try:
            eventually(lambda: batch.items.exclude(state="pending").exists(), "some are sent")
            switch(broker, on=True)
        finally:
            connection.close()

    thread = Thread(target=switch_in_the_middle)
    thread.start()
    worked_off(batch_state.KIND, send_batch.replay)
    thread.join()
    batch.refresh_from_db()
    assert batch.work is not None
    assert batch.work.error == f"{broker.name} is read-only. An administrator can end this."
    assert 0 < batch.items.filter(state="done").count() < NUMBER
    switch(broker, on=False)
    at_rest(batch)
    assert len({message.content_id for message in arrived(vhost, number=NUMBER)}) == NUMBER
    assert is_empty(vhost, "orders")
    batch.refresh_from_db()
    assert adds_up(batch)
