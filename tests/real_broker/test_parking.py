"""Parking on real brokers: watched, all at once, chosen; what comes again is marked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Event, Thread
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from analytics import facts
from delayboard.dead_letters.parked import park_queue, park_request
from delayboard.dead_letters.parked.consume import make_store
from delayboard.dead_letters.parked.park_queue import park_automatically
from delayboard.dead_letters.parked.store_batch import ParkingWriter, SpaceCheck
from delayboard.dead_letters.queues import peek
from delayboard.dead_letters.queues.peek import PeekedMessage
from delayboard.models import DeadLetterQueue, MessageGroup, ParkedMessage, Parking, ParkSession
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, eventually, make_broker, make_user
from tests.publishing import publisher
from topology import snapshots, work
from topology.broker.amqp.consumer import getter
from topology.broker.errors import NotFound
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties, read_properties
from topology.definitions import Arguments, Queue
from topology.message import Message, Properties, Publish
from topology.models import Broker, Role, Work, WorkState
from topology.snapshot import Snapshot

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("event_log"),
    every_generation,
]
DEAD = "dead"
SECONDS = 30.0


@pytest.fixture(params=["classic", "quorum"])
def queue(request: pytest.FixtureRequest, vhost: Vhost) -> Queue:
    made = Queue(DEAD, arguments=Arguments({"x-queue-type": request.param}))
    with Management(address_of(vhost)) as management:
        management.declare_queue(made)
    return made


@pytest.fixture
def row(vhost: Vhost, queue: Queue) -> DeadLetterQueue:
    return confirmed(make_broker(vhost), DEAD)


@pytest.fixture
def user(row: DeadLetterQueue) -> User:
    return make_user("ann", Role.OPERATOR, row.broker)


def confirmed(broker: Broker, name: str) -> DeadLetterQueue:
    return DeadLetterQueue.objects.create(
        broker=broker, queue=name, is_confirmed=True, decided_at=timezone.now()
    )


def send(
    vhost: Vhost, *ids: str, body: bytes = b"{}", properties: Properties | None = None
) -> None:
    with publisher(address_of(vhost), "test") as channel:
        for name in ids:
            stated = properties or build_properties({"n": name}, message_id=name, delivery_mode=2)
            channel.publish(Publish("", DEAD, stated, body))


def handle(message: Message, occurrence: int = 1) -> str:
    (parked_message,) = peek.number_messages([message])
    return f"{parked_message.handle.rpartition('.')[0]}.{occurrence}"


def looked(
    broker: Broker, queue: Queue, snapshot: Snapshot, number: int
) -> tuple[PeekedMessage, ...] | None:
    """What is at its head once there are so many."""
    found = peek.peek_queue(
        broker, queue, snapshot, store=make_store(broker, queue.name, None)
    ).peeked_messages
    return found if len(found) == number else None


def left(vhost: Vhost) -> list[Message]:
    messages = []
    with getter(address_of(vhost), DEAD) as source:
        while delivery := source.get():
            source.ack([delivery.tag])
            messages.append(delivery.message)
    return messages


@contextmanager
def watched(row: DeadLetterQueue) -> Iterator[list[BaseException]]:
    """The task for the length of a block; what it raised."""
    stop = Event()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            park_automatically(row.pk, stop=stop, beat=lambda details: None, space=SpaceCheck())
        except BaseException as error:
            raised.append(error)
        finally:
            connection.close()

    thread = Thread(target=run)
    thread.start()
    try:
        yield raised
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def parked() -> Counter[str]:
    return Counter(ParkedMessage.objects.values_list("message_id", flat=True))


def counts_add_up() -> bool:
    parked_messages = ParkedMessage.objects.count()
    return sum(g.parked for g in MessageGroup.objects.all()) == parked_messages


def snapshot_of(broker: Broker) -> Any:
    known = snapshots.poll(broker, 20)
    assert known.snapshot is not None
    return known.snapshot


def done(parking: Parking) -> Parking:
    """Worker, without waiting for leases and pauses to run out."""
    while True:
        parking.refresh_from_db()
        if parking.is_ended:
            return parking
        long_ago = datetime.now(UTC) - timedelta(seconds=1)
        Work.objects.update(leased_until_at=long_ago, not_before_at=None)
        claimed = work.claim((park_queue.KIND,), "test worker")
        assert claimed is not None
        work.attempt(park_queue.park, claimed, stop=Event())


def test_a_watched_queue_is_parked_as_its_messages_come(vhost: Vhost, row: DeadLetterQueue) -> None:
    send(vhost, *(f"a{number}" for number in range(50)))
    with watched(row) as raised:
        eventually(lambda: ParkedMessage.objects.count() == 50, "what was there", seconds=SECONDS)
        send(vhost, "late")
        eventually(lambda: ParkedMessage.objects.count() == 51, "what came later", seconds=SECONDS)
    assert raised == []
    assert left(vhost) == []
    assert set(parked().values()) == {1}
    assert counts_add_up()
    session = ParkSession.objects.get()
    assert session.acked_to <= session.stored_to == ParkedMessage.objects.latest("pk").pk
    assert session.ended_at is not None
    assert Counter(e.kind for _, e in facts.oldest(100)) == {"parked": 51}


def test_what_was_parked_is_what_lay_there_whatever_it_holds(
    vhost: Vhost, row: DeadLetterQueue
) -> None:
    odd = b"\x01dD\x01\x00\x00\x00\x0f\x01tT\x00\x00\xff\xff\xff\xff\xff\xff"
    raw = b"\x20\x00" + len(odd).to_bytes(4, "big") + odd
    send(vhost, "odd", body=b"\x00\xff", properties=read_properties(raw))
    with getter(address_of(vhost), DEAD) as source:
        got = eventually(source.get, "it is there")
    with watched(row):
        parked_message = eventually(ParkedMessage.objects.first, "it is parked", seconds=SECONDS)
    assert parked_message.message.body == b"\x00\xff"
    assert b"\x01dD\x01\x00\x00\x00\x0f" in parked_message.message.properties.raw
    assert parked_message.content_id == got.message.content_id


def test_a_queue_that_vanishes_is_said_and_gone_on_with_when_it_is_back(
    vhost: Vhost, row: DeadLetterQueue, queue: Queue
) -> None:
    with Management(address_of(vhost)) as management:
        with watched(row) as raised:
            send(vhost, "first")
            eventually(lambda: parked()["first"] == 1, "it is at work", seconds=SECONDS)
            management.delete_queue(DEAD, only_if_empty=False)
            eventually(lambda: raised, "it ends", seconds=SECONDS)
        assert isinstance(raised[0], NotFound)
        management.declare_queue(queue)
    send(vhost, "second")
    with watched(row) as raised:
        eventually(lambda: parked()["second"] == 1, "it goes on", seconds=SECONDS)
    assert raised == []


def test_what_comes_again_after_a_crash_between_commit_and_ack_is_kept_and_marked(
    vhost: Vhost, row: DeadLetterQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them are equal, and both are real."""
    send(vhost, "m0", "same", "same")
    keep = ParkingWriter.store_messages

    def die(self: ParkingWriter, *args: Any) -> list[int]:
        keep(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ParkingWriter, "store_messages", die)
        with watched(row) as raised:
            eventually(lambda: raised, "it dies", seconds=SECONDS)
    assert ParkedMessage.objects.count() == 3
    send(vhost, "m0")
    with watched(row):
        eventually(lambda: ParkedMessage.objects.count() == 7, "all are kept", seconds=SECONDS)
    assert parked() == {"m0": 3, "same": 4}
    pairs = ParkedMessage.objects.exclude(repeat_of=None).values_list("repeat_of", flat=True)
    assert set(pairs) == set(ParkedMessage.objects.order_by("pk").values_list("pk", flat=True)[:3])
    assert len(pairs) == 3
    assert counts_add_up()
    assert left(vhost) == []


def test_all_that_is_there_is_parked_and_not_what_comes_meanwhile(
    vhost: Vhost, row: DeadLetterQueue, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(vhost, *(f"a{number}" for number in range(40)))
    eventually(
        lambda: park_queue._depth(Parking(broker=row.broker, queue=DEAD)) == 40, "all are there"
    )
    parking = park_request.park_all(user, row.broker, DEAD, snapshot_of(row.broker))
    keep = ParkingWriter.store_messages

    def more(self: ParkingWriter, *args: Any) -> list[int]:
        send(vhost, "later", "later too")
        return keep(self, *args)

    monkeypatch.setattr(ParkingWriter, "store_messages", more)
    parking = done(parking)
    assert parking.work is not None
    assert parking.work.state == WorkState.DONE
    assert (parking.requested, parking.parked, parking.repeats) == (40, 40, 0)
    assert {m.properties.message_id for m in left(vhost)} == {"later", "later too"}
    assert ParkSession.objects.get().ended_at is not None


def test_chosen_ones_are_parked_and_the_others_stay_in_their_order(
    vhost: Vhost, row: DeadLetterQueue, queue: Queue, user: User
) -> None:
    send(vhost, "a", "b", "c", "b", "d")
    with getter(address_of(vhost), DEAD) as source:
        eventually(lambda: source.get(), "they are there")
    messages = {}
    with getter(address_of(vhost), DEAD) as source:
        for _ in range(5):
            delivery = source.get()
            assert delivery is not None
            messages[delivery.message.properties.message_id or ""] = delivery.message
    gone = f"{'0' * 32}.{'0' * 8}.1"
    handles = [handle(messages["b"], 2), handle(messages["d"]), gone]
    snapshot = snapshot_of(row.broker)
    if queue.type == "quorum" and snapshot.version_tuple < (4, 3):
        with pytest.raises(park_request.ParkError, match="harms the others"):
            park_request.park_these(user, row.broker, DEAD, snapshot, handles)
        return
    parking = done(park_request.park_these(user, row.broker, DEAD, snapshot, handles))
    assert (parking.requested, parking.parked, parking.handles) == (3, 2, [gone])
    assert parked() == {"b": 1, "d": 1}
    assert [m.properties.message_id for m in left(vhost)] == ["a", "b", "c"]


def test_when_the_head_moves_an_equal_one_that_died_otherwise_is_not_taken_for_it(
    vhost: Vhost, row: DeadLetterQueue, queue: Queue, user: User
) -> None:
    snapshot = snapshot_of(row.broker)
    if queue.type == "quorum" and snapshot.version_tuple < (4, 3):
        with pytest.raises(park_request.ParkError, match="harms the others"):
            park_request.park_these(user, row.broker, DEAD, snapshot, [f"{'0' * 32}.{'0' * 8}.1"])
        return
    stated = build_properties(message_id="same", delivery_mode=2)
    died = Arguments(
        {"x-message-ttl": 0, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": DEAD}
    )
    seen: tuple[PeekedMessage, ...] = ()
    for number, place in enumerate(("first", "second"), start=1):
        with Management(address_of(vhost)) as management:
            management.declare_queue(Queue(place, arguments=died))
        with publisher(address_of(vhost), "test") as channel:
            channel.publish(Publish("", place, stated, b"{}"))
        seen = eventually(partial(looked, row.broker, queue, snapshot, number), "it died")
    one, other = seen
    assert one.content_id == other.content_id
    with getter(address_of(vhost), DEAD) as source:
        source.ack([eventually(source.get, "a consumer takes the first").tag])
    parking = done(park_request.park_these(user, row.broker, DEAD, snapshot, [one.handle]))
    assert (parking.parked, parking.handles) == (0, [one.handle])
    parking = done(park_request.park_these(user, row.broker, DEAD, snapshot, [other.handle]))
    assert (parking.parked, parking.handles) == (1, [])
    assert MessageGroup.objects.get().died_in == "second"
    assert left(vhost) == []


def test_a_parking_is_cancelled_and_what_was_not_parked_stays(
    vhost: Vhost, row: DeadLetterQueue, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(vhost, *(f"a{number}" for number in range(20)))
    parking = park_request.park_all(user, row.broker, DEAD, snapshot_of(row.broker))
    keep = ParkingWriter.store_messages

    def cancel(self: ParkingWriter, *args: Any) -> list[int]:
        parked_messages = keep(self, *args)
        park_request.cancel(user, parking)
        return parked_messages

    monkeypatch.setattr(ParkingWriter, "store_messages", cancel)
    parking.requested = 30
    parking.save()
    parking = done(parking)
    assert parking.work is not None
    assert parking.work.state == WorkState.CANCELLED
    assert parking.parked == ParkedMessage.objects.count() > 0
    assert parking.parked + len(left(vhost)) == 20


def test_a_parking_of_a_queue_that_is_gone_ends_and_says_so(
    vhost: Vhost, row: DeadLetterQueue, user: User
) -> None:
    parking = park_request.park_all(user, row.broker, DEAD, snapshot_of(row.broker))
    with Management(address_of(vhost)) as management:
        management.delete_queue(DEAD, only_if_empty=False)
    parking = done(parking)
    assert parking.work is not None
    assert parking.work.state == WorkState.FAILED
    assert "no queue" in parking.work.error


@pytest.mark.parametrize("crash", [False, True])
def test_a_parking_goes_on_after_a_crash_and_asks_for_no_more_than_before(
    vhost: Vhost, row: DeadLetterQueue, user: User, monkeypatch: pytest.MonkeyPatch, crash: bool
) -> None:
    send(vhost, *(f"a{number}" for number in range(20)))
    depth = partial(park_queue._depth, Parking(broker=row.broker, queue=DEAD))
    eventually(lambda: depth() == 20, "all are there")
    parking = park_request.park_all(user, row.broker, DEAD, snapshot_of(row.broker))
    claimed = work.claim((park_queue.KIND,), "doomed worker")
    assert claimed is not None
    keep = ParkingWriter.store_messages

    def die(self: ParkingWriter, *args: Any) -> list[int]:
        if crash:
            keep(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ParkingWriter, "store_messages", die)
        with pytest.raises(KeyboardInterrupt):
            work.attempt(park_queue.park, claimed, stop=Event())
    parking = done(parking)
    assert (parking.parked - parking.repeats, left(vhost)) == (20, [])
    assert set(parked()) == {f"a{number}" for number in range(20)}
    again = ParkedMessage.objects.exclude(repeat_of=None).count()
    assert parking.repeats == again == ParkedMessage.objects.count() - len(parked())
