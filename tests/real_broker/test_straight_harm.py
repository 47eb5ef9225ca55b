"""A replay straight through harms nothing: where taking costs, at any rate, in any trouble."""

from __future__ import annotations

from typing import Any

import pika.frame
import pytest
from django.db import DatabaseError

from delayboard.dead_letters.replay.move_queue import (
    move_messages,
    moved_counts,
    queue_source,
    watch_queue,
)
from delayboard.demo.node import PrivateNode
from delayboard.models import BatchState, ReplayBatch
from tests.brokers import Vhost, call_api, every_generation
from tests.builders import address_of, eventually
from tests.faults.alarms import alarmed
from tests.real_broker.test_straight import (
    a_batch,
    counts,
    declared,
    depth,
    drained,
    filled,
    quorum,
    run,
    running,
    state,
)
from topology import work
from topology.broker.amqp.connection import open_connection
from topology.broker.amqp.fast_consumer import Intake
from topology.broker.amqp.pipeline import Pipeline
from topology.broker.errors import Blocked, BrokerError
from topology.broker.management.client import Management
from topology.definitions import Queue
from topology.message import REPLAYS_HEADER
from topology.models import Work, WorkState

pytestmark = pytest.mark.django_db(transaction=True)


def again(batch: ReplayBatch) -> None:
    """Let its work be claimed at once, as if the time until the next try were over."""
    Work.objects.update(state=WorkState.WAITING, leased_until_at=None, not_before_at=None)


@every_generation
def test_from_a_queue_with_a_delivery_limit_nothing_is_taken(vhost: Vhost) -> None:
    limited = quorum(vhost, **{"x-delivery-limit": 3})
    declared(vhost, Queue("dead", arguments=limited), Queue("target"))
    filled(vhost, "dead", 50)
    batch = a_batch(vhost, "dead", rate=1.0)
    run(batch)
    assert batch.state == BatchState.PAUSED
    assert "“dead” has the delivery limit 3" in batch.state_why
    assert "Park the queue and replay the parked messages instead." in batch.state_why
    assert counts(batch) == {"pending": 50}
    assert depth(vhost, "target") == 0
    assert not any(one.message.redelivered for one in drained(vhost, "dead", 50))


def test_a_message_that_few_crashes_would_destroy_pauses_it(vhost: Vhost) -> None:
    """From 4.3 on a connection that ends without giving back costs a delivery."""
    limited = quorum(vhost, **{"x-delivery-limit": 6})
    declared(vhost, Queue("dead", arguments=limited), Queue("target"))
    filled(vhost, "dead", 10)
    with open_connection(address_of(vhost), "crashing") as held:
        taking = Intake(held, address_of(vhost), "dead", 10)
        eventually(lambda: list(taking.arrivals(10, 1.0)), "some came")
    eventually(lambda: depth(vhost, "dead") == 10, "they are back")
    batch = a_batch(vhost, "dead")
    run(batch)
    assert batch.state == BatchState.PAUSED
    assert "delivery limit" in batch.state_why
    assert batch.state_why.endswith("Park the queue and replay the parked messages instead.")
    found = counts(batch)
    assert found["pending"] > 0
    eventually(lambda: depth(vhost, "dead") == found["pending"], "the others are back")
    assert depth(vhost, "target") == 10 - found["pending"]


def test_a_limit_that_a_policy_gives_it_pauses_a_run(
    vhost: Vhost, broker_node: PrivateNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_queue, "CHECK_SECONDS", 0.2)
    declared(vhost, Queue("dead", arguments=quorum(vhost)), Queue("target"))
    filled(vhost, "dead", 500)
    batch = a_batch(vhost, "dead", rate=5.0)
    with running(batch):
        eventually(lambda: depth(vhost, "target") > 0, "it is at work")
        policy = {"pattern": "dead", "apply-to": "queues", "definition": {"delivery-limit": 3}}
        call_api(broker_node, "PUT", f"policies/{vhost.name}/limit", policy)
        eventually(lambda: state(batch) == BatchState.PAUSED, "it is paused")
    assert "“dead” has the delivery limit 3" in batch.state_why
    found = counts(batch)
    eventually(lambda: depth(vhost, "dead") == found["pending"], "the others are back")
    assert depth(vhost, "target") == found["done"]


def test_while_the_broker_has_an_alarm_nothing_is_taken(
    vhost: Vhost, broker_node: PrivateNode
) -> None:
    declared(vhost, Queue("dead"), Queue("target"))
    filled(vhost, "dead", 20)
    batch = a_batch(vhost, "dead")
    with alarmed(broker_node, "disk"), pytest.raises(Blocked, match="has an alarm"):
        run(batch)
    batch.refresh_from_db()
    assert counts(batch) == {"pending": 20}
    assert batch.doubled == 0
    assert not any(one.message.redelivered for one in drained(vhost, "dead", 20))


def test_at_a_low_rate_each_goes_once_and_is_acknowledged_at_once(vhost: Vhost) -> None:
    """A connection that nobody attends to is cut after two heartbeats, 12 to 18 seconds."""
    declared(vhost, Queue("dead", arguments=quorum(vhost)), Queue("target"))
    filled(vhost, "dead", 2)
    batch = a_batch(vhost, "dead", rate=0.05)
    with running(batch), Management(address_of(vhost)) as management:
        eventually(lambda: depth(vhost, "target") == 1, "the first is there")
        eventually(lambda: management.queue("dead").get("messages") == 1, "it is acknowledged")
        eventually(lambda: state(batch) == BatchState.DONE, "all are through", seconds=40)
    assert counts(batch) == {"done": 2}
    assert batch.doubled == 0
    assert [one.message.body for one in drained(vhost, "target", 2)] == [b"0", b"1"]


def test_a_rate_brings_no_more_of_the_queue_than_it_takes_in_a_minute(vhost: Vhost) -> None:
    declared(vhost, Queue("dead"), Queue("target"))
    filled(vhost, "dead", 100)
    batch = a_batch(vhost, "dead", rate=0.1)
    assert batch.work is not None
    with running(batch):
        eventually(lambda: depth(vhost, "target") == 1, "it is at work")
        assert depth(vhost, "dead") >= 100 - 7
        work.cancel(batch.work)


def test_a_queue_is_not_empty_while_what_came_is_not_looked_at(vhost: Vhost) -> None:
    declared(vhost, Queue("dead"), Queue("target"))
    filled(vhost, "dead", 40, **{REPLAYS_HEADER: 3})
    batch = a_batch(vhost, "dead", most_replays=3, rate=1.0)
    run(batch)
    assert counts(batch) == {"failed": 40}


def test_what_is_refused_is_given_back_before_the_broker_misses_its_ack(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared(vhost, Queue("dead"), Queue("target"))
    filled(vhost, "dead", 5, **{REPLAYS_HEADER: 3})
    filled(vhost, "dead", 400)
    batch = a_batch(vhost, "dead", most_replays=3, rate=20.0)
    with monkeypatch.context() as patched:
        patched.setattr(queue_source, "UNACKED_SECONDS", 1.0)
        run(batch)
    assert (batch.work and batch.work.error) == moved_counts.REFUSED_AGAIN
    assert counts(batch)["failed"] == 5
    assert 0 < batch.done < 400
    eventually(lambda: depth(vhost, "dead") == 405 - batch.done, "all others are back")
    ReplayBatch.objects.update(rate=None)
    run(batch)
    assert counts(batch) == {"done": 400, "failed": 5}
    assert (batch.state, batch.doubled) == (BatchState.DONE, 0)
    assert depth(vhost, "target") == 400


def test_a_run_of_which_all_is_refused_does_not_go_round_for_ever(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_source, "UNACKED_SECONDS", 0.5)
    declared(vhost, Queue("dead"))
    filled(vhost, "dead", 40)
    batch = a_batch(vhost, "dead", rate=10.0)
    run(batch)
    assert batch.state == BatchState.PAUSED
    assert batch.state_why.startswith("RabbitMQ refused every message; they are back in the queue.")
    assert "has no queue for the key “target”" in batch.state_why
    eventually(lambda: depth(vhost, "dead") == 40, "all are back")


def test_a_commit_whose_answer_was_lost_is_counted_once(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared(vhost, Queue("dead"), Queue("target"))
    filled(vhost, "dead", 60)
    batch = a_batch(vhost, "dead", rate=20.0)
    write = move_messages._Run._write
    lost: list[int] = []

    def writes(self: move_messages._Run, **values: Any) -> None:
        write(self, **values)
        if values.get("done") and not lost:
            lost.append(values["done"])
            raise DatabaseError("the connection was cut")

    monkeypatch.setattr(move_messages._Run, "_write", writes)
    run(batch)
    assert lost
    assert counts(batch) == {"done": 60}
    assert depth(vhost, "target") == 60


def test_what_was_tried_again_and_again_is_called_doubled_at_most_once(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker takes no publishes, and nobody could see it beforehand."""
    declared(vhost, Queue("dead"), Queue("target"))
    filled(vhost, "dead", 50)
    batch = a_batch(vhost, "dead")

    def answers(self: Pipeline[Any], seconds: float) -> list[Any]:
        raise Blocked("An alarm.")

    with monkeypatch.context() as patched:
        patched.setattr(Pipeline, "answers", answers)
        patched.setattr(Pipeline, "_flush", lambda self: None)
        for _ in range(4):
            with pytest.raises(BrokerError):
                run(batch)
            again(batch)
    batch.refresh_from_db()
    assert counts(batch) == {"pending": 50}
    assert batch.doubled <= 50
    run(batch)
    assert counts(batch) == {"done": 50}
    assert depth(vhost, "target") == 50


def test_while_the_database_is_waited_for_the_queue_is_attended_to(vhost: Vhost) -> None:
    """A broker that hears nothing for two heartbeats, here of a second, cuts the connection."""
    declared(vhost, Queue("dead"))
    filled(vhost, "dead", 3)
    address = address_of(vhost)
    with open_connection(address, "test", heartbeat=1) as held:
        taking = Intake(held, address, "dead", 2)
        assert len(list(taking.arrivals(1, 10.0))) == 1
        heard = held._impl.bytes_received
        with taking.attended():
            enough = heard + 4 * len(pika.frame.Heartbeat().marshal())
            eventually(lambda: held._impl.bytes_received >= enough, "the broker is listened to")
        assert taking.depth() == 1
        taking.give_back()
        assert taking.is_given_back
    assert depth(vhost, "dead") == 3
