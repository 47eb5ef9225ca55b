"""Publish, recorded arrival, dead letters, replay: the parts together on a real broker."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from django.db import connection
from pytest_django import Settings

from analytics.recorder.follow import follow
from analytics.recorder.record import record
from delayboard.dead_letters import browse
from delayboard.dead_letters.replay import batch as batches
from delayboard.dead_letters.replay.send import ItemJournal, replay
from delayboard.dead_letters.replay.verdict import Target
from delayboard.models import ItemState, ReplayBatch
from delayboard.publishing.predict import predict
from delayboard.publishing.send import Letter, send
from delayboard.publishing.track import Track, track
from tests.brokers import Vhost
from tests.builders import address_of, applied_pair, eventually, make_user
from topology import latest, work
from topology.broker.consumer import Consumer, getter
from topology.broker.fields import read_table, table_entries
from topology.broker.management import Management
from topology.broker.properties import build_properties, read_properties
from topology.broker.publisher import publisher
from topology.definitions import Queue
from topology.message import REPLAY_HEADER, Message, Publish
from topology.models import Role, Topology, Work, WorkState

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def event_log(settings: Settings, tmp_path: Path) -> None:
    settings.EVENT_LOG = tmp_path / "log"


@contextmanager
def recorded(topology: Topology) -> Iterator[None]:
    """The recorder and the index at work for the length of a block."""
    stop = threading.Event()

    def run(duty: Callable[..., None]) -> None:
        try:
            duty(stop=stop, beat=lambda details: None)
        finally:
            connection.close()

    duties = (partial(record, topology.pk), follow)
    threads = [threading.Thread(target=run, args=(duty,)) for duty in duties]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(10)


def parked(vhost: Vhost, *, rounds: int = 2, count: int = 1) -> Topology:
    """`count` messages that were rejected `rounds` times and then given up into `dead`."""
    topology = applied_pair(vhost, delay="100ms")
    address = address_of(vhost)
    with Management(address) as management:
        management.declare_queue(Queue("dead"))
    with publisher(address, "test") as channel, Consumer(address, "orders") as consumer:
        for number in range(count):
            properties = build_properties(
                {"n": number, "price": 1.5},
                message_id=f"m{number}",
                content_type="application/json",
                delivery_mode=2,
            )
            channel.publish(Publish("orders", "orders", properties, b'{"n": %d}' % number))
            for _ in range(rounds):
                (delivery,) = consumer.batch(limit=1, limit_bytes=10**6, wait=10, linger=0)
                consumer.reject(delivery)
            (delivery,) = consumer.batch(limit=1, limit_bytes=10**6, wait=10, linger=0)
            message = delivery.message
            channel.publish(Publish("", "dead", message.properties, message.body))
            consumer.ack_through(delivery)
    return topology


def look(topology: Topology, queue: str = "dead") -> browse.Look:
    snapshot = latest.poll(topology.broker).snapshot
    assert snapshot is not None
    found = snapshot.definitions.queue(queue)
    assert found is not None
    return browse.look(topology.broker, found, snapshot)


def freeze(topology: Topology, seen: browse.Look, *, typed: Target | None = None) -> ReplayBatch:
    snapshot = latest.poll(topology.broker).snapshot
    assert snapshot is not None
    user = make_user(f"operator-{uuid.uuid4().hex[:6]}", Role.OPERATOR)
    return batches.freeze(user, topology.broker, "dead", seen.letters, snapshot, typed=typed)


def run(batch: ReplayBatch) -> ReplayBatch:
    batches.start(batch.created_by, batch, despite_verdict=False)
    return to_its_end(batch)


def to_its_end(batch: ReplayBatch) -> ReplayBatch:
    """What the worker does, without waiting for leases and pauses to run out."""
    while True:
        batch.refresh_from_db()
        if batch.is_ended:
            return batch
        long_ago = datetime.now(UTC) - timedelta(seconds=1)
        Work.objects.update(leased_until_at=long_ago, not_before_at=None)
        claimed = work.claim((batches.KIND,), "test worker")
        assert claimed is not None
        replay(claimed)


def drained(vhost: Vhost, queue: str) -> list[Message]:
    messages = []
    with getter(address_of(vhost), queue) as source:
        while delivery := source.get():
            source.ack(delivery)
            messages.append(delivery.message)
    return messages


def test_a_delayed_message_is_predicted_sent_and_seen_to_arrive(vhost: Vhost) -> None:
    topology = applied_pair(vhost, delay="300ms")
    user = make_user("ada", Role.OPERATOR)
    snapshot = latest.poll(topology.broker).snapshot
    assert snapshot is not None
    prediction = predict(snapshot, "orders-retry", "orders")
    assert prediction.arrives_after == timedelta(milliseconds=300)
    assert prediction.sentence == "It arrives in orders after 300ms."
    with recorded(topology):
        letter = Letter("orders-retry", "orders", b"{}", {"tenant": 42})
        row = send(user, topology.broker, letter, prediction)
        assert row.sent == "confirmed"

        def settled() -> Track | None:
            told = track(row, datetime.now(UTC))
            return told if told.is_settled else None

        followed = eventually(settled, "the arrival is observed")
    assert followed.mark == "arrived"
    assert followed.observation is not None
    assert followed.observation.lateness is not None
    assert "It arrived at" in followed.sentence


def test_an_unroutable_publish_is_told_and_written_down(vhost: Vhost) -> None:
    topology = applied_pair(vhost)
    snapshot = latest.poll(topology.broker).snapshot
    assert snapshot is not None
    prediction = predict(snapshot, "orders", "nobody")
    assert not prediction.is_good
    letter = Letter("orders", "nobody", b"")
    row = send(make_user("ada", Role.OPERATOR), topology.broker, letter, prediction)
    assert row.outcome == "refused"
    assert "gave the message back" in row.error


def test_a_publish_that_only_our_own_tap_takes_is_no_success(vhost: Vhost) -> None:
    topology = applied_pair(vhost)
    with Management(address_of(vhost)) as management:
        management.delete_queue("orders", only_if_empty=True)
    snapshot = latest.poll(topology.broker).snapshot
    assert snapshot is not None
    prediction = predict(snapshot, "orders", "orders")
    letter = Letter("orders", "orders", b"")
    row = send(make_user("ada", Role.OPERATOR), topology.broker, letter, prediction)
    assert row.outcome == "refused"
    assert "No queue takes it" in row.error


def test_a_look_changes_neither_bytes_nor_count_nor_order(vhost: Vhost) -> None:
    topology = parked(vhost, count=4, rounds=1)
    first, second, third = look(topology), look(topology), look(topology)
    ids = [letter.message.properties.message_id for letter in first.letters]
    assert ids == ["m0", "m1", "m2", "m3"]
    for other in (second, third):
        assert [x.message.properties.raw for x in other.letters] == [
            x.message.properties.raw for x in first.letters
        ]
        assert [x.message.body for x in other.letters] == [x.message.body for x in first.letters]


def test_the_history_says_where_it_died_and_the_default_target_leads_back(vhost: Vhost) -> None:
    topology = parked(vhost, rounds=2)
    (letter,) = look(topology).letters
    assert [(d.queue, d.reason, d.count) for d in letter.history.deaths] == [
        ("orders", "rejected", 2),
        ("orders-retry", "expired", 2),
    ]
    batch = freeze(topology, look(topology))
    item = batch.items.get()
    assert (item.target_exchange, item.target_key) == ("orders", "orders")
    assert item.verdict == "Arrives in orders at once."


def test_chosen_letters_are_replayed_stripped_and_the_others_stay(vhost: Vhost) -> None:
    topology = parked(vhost, count=3)
    seen = look(topology)
    before = seen.letters[1].message
    chosen = browse.Look(seen.letters[1:2], False, seen.permission)
    batch = run(freeze(topology, chosen))
    assert batch.counts()["done"] == 1
    assert [m.properties.message_id for m in drained(vhost, "dead")] == ["m0", "m2"]
    (back,) = drained(vhost, "orders")
    assert back.body == before.body
    assert not [name for name in back.headers if name.startswith("x-")]
    assert back.headers[REPLAY_HEADER] == str(batch.items.get().replay_id)
    kept = {name: before.headers[name] for name in ("n", "price")}
    assert {name: back.headers[name] for name in kept} == kept
    assert back.properties.stated() == before.properties.stated()
    assert back.content_id == before.content_id


def test_a_returned_message_stays_where_it_was_with_the_reason(vhost: Vhost) -> None:
    topology = parked(vhost)
    seen = look(topology)
    batch = freeze(topology, seen)
    with Management(address_of(vhost)) as management:
        management.delete_queue("orders", only_if_empty=True)
    batch = run(batch)
    item = batch.items.get()
    assert item.state == ItemState.RETURNED
    assert "own tap" in item.error
    assert len(drained(vhost, "dead")) == 1


@pytest.mark.parametrize("dies_in", ["publishing", "confirmed", "done"])
def test_a_worker_that_dies_at_any_step_loses_nothing_and_says_what_may_be_double(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch, dies_in: str
) -> None:
    topology = parked(vhost, count=2)
    batch = freeze(topology, look(topology))
    batches.start(batch.created_by, batch, despite_verdict=False)
    claimed = work.claim((batches.KIND,), "doomed worker")
    assert claimed is not None
    step = getattr(ItemJournal, dies_in)

    def die(self: ItemJournal, key: int) -> None:
        if dies_in == "publishing":
            step(self, key)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ItemJournal, dies_in, die)
        with pytest.raises(KeyboardInterrupt):
            replay(claimed)
    batch = to_its_end(batch)
    assert batch.work is not None
    assert (batch.work.state, batch.work.fence > claimed.fence) == (WorkState.DONE, True)
    assert drained(vhost, "dead") == []
    back = [m.properties.message_id or "" for m in drained(vhost, "orders")]
    assert sorted(set(back)) == ["m0", "m1"]
    first = batch.items.get(position=1)
    assert first.state == ItemState.DONE
    twice = back.count("m0") == 2
    assert twice == (dies_in == "confirmed")
    assert first.may_be_duplicated == (dies_in in ("publishing", "confirmed"))


def test_of_equal_messages_none_is_lost_when_the_worker_dies_after_the_ack(
    vhost: Vhost, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = applied_pair(vhost, delay="100ms")
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("dead"))
    with publisher(address_of(vhost), "test") as channel:
        for _ in range(2):
            channel.publish(Publish("", "dead", build_properties(delivery_mode=2), b"same"))
    snapshot = latest.poll(topology.broker).snapshot
    assert snapshot is not None
    user = make_user("operator", Role.OPERATOR)
    one = look(topology).letters[:1]
    target = Target("orders", "orders", "typed in")
    batch = batches.freeze(user, topology.broker, "dead", one, snapshot, typed=target)
    batches.start(user, batch, despite_verdict=False)
    claimed = work.claim((batches.KIND,), "doomed worker")
    assert claimed is not None

    def die(self: ItemJournal, key: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ItemJournal, "done", die)
        with pytest.raises(KeyboardInterrupt):
            replay(claimed)
    to_its_end(batch)
    assert len(drained(vhost, "dead")) + len(drained(vhost, "orders")) >= 2
    assert batch.items.get().may_be_duplicated


def test_a_cancelled_batch_leaves_what_was_not_begun(vhost: Vhost) -> None:
    topology = parked(vhost, count=2)
    batch = freeze(topology, look(topology))
    batches.start(batch.created_by, batch, despite_verdict=False)
    batch.refresh_from_db()
    batches.cancel(batch.created_by, batch)
    assert batch.counts()["cancelled"] == 2
    assert work.claim((batches.KIND,), "worker") is None
    assert len(drained(vhost, "dead")) == 2


def test_properties_pass_a_replay_bit_for_bit_whatever_pika_makes_of_them(vhost: Vhost) -> None:
    """A decimal, a small integer, a float, bytes, and a timestamp past the year 9999."""
    odd = (
        b"\x01dD\x01\x00\x00\x00\x0f"
        b"\x01bb\x7f"
        b"\x01ff\x40\x6c\xcc\xcd"
        b"\x01xx\x00\x00\x00\x02\xff\xfe"
        b"\x01tT\x00\x00\xff\xff\xff\xff\xff\xff"
    )
    raw = b"\x20\x00" + len(odd).to_bytes(4, "big") + odd
    applied_pair(vhost, tap_type="classic")
    with publisher(address_of(vhost), "test") as channel:
        channel.publish(Publish("orders", "orders", read_properties(raw), b"\x00\xff"))
    (message,) = drained(vhost, "orders")
    came = message.properties.raw
    assert came[:6] == raw[:6]
    # RabbitMQ 4 sorts a table by its names; the bytes of each entry stay.
    assert {e[2] for e in table_entries(came[6:])} == {e[2] for e in table_entries(odd)}
    assert message.headers == read_table(odd)


def test_a_decimal_header_is_not_replayed_where_a_stream_tap_would_break_the_connection(
    vhost: Vhost,
) -> None:
    """Streams of 4.0.5 and 4.3.6 take no decimal; a classic tap takes everything."""
    topology = parked(vhost, count=2)
    decimal = b"\x01dD\x01\x00\x00\x00\x0f"
    odd = read_properties(b"\x20\x00" + len(decimal).to_bytes(4, "big") + decimal)
    with publisher(address_of(vhost), "test") as channel:
        channel.publish(Publish("", "dead", odd, b"decimal"))
    eventually(lambda: len(look(topology).letters) == 3, "all three are parked")
    batch = freeze(topology, look(topology), typed=Target("orders", "orders", "typed in"))
    batches.start(batch.created_by, batch, despite_verdict=True)
    to_its_end(batch)
    if topology.tap_type == "classic":
        assert batch.counts()["done"] == 3
        return
    assert (batch.counts()["done"], batch.counts()["failed"]) == (2, 1)
    refused = batch.items.get(state=ItemState.FAILED)
    assert "holds a decimal number" in refused.error
    assert [message.body for message in drained(vhost, "dead")] == [b"decimal"]
