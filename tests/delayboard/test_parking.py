"""What parking works out: repeats, limits, runs, what is left, who may be parked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError
from django.utils import timezone

from delayboard.dead_letters.parked import consume, park_queue, park_request, store, store_batch
from delayboard.dead_letters.parked.consume import Limits, Taking, limits_of, make_limits
from delayboard.dead_letters.parked.store_batch import (
    ParkingWriter,
    SpaceCheck,
    StoreFailed,
    find_earlier,
    identity,
)
from delayboard.models import Body, DeadLetterQueue, ParkedMessage, Parking, ParkSession
from tests.delayboard.builders import a_message
from tests.topology.builders import a_snapshot, delivered
from topology import work
from topology.broker.amqp.consumer import Consumer
from topology.broker.errors import Conflict
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Arguments, Definitions, Queue
from topology.message import REPLAY_HEADER, Message
from topology.models import AuditEntry, Broker, Work, WorkState

pytestmark = pytest.mark.both_databases


def a_session(broker: Broker, **stated: Any) -> ParkSession:
    return ParkSession.objects.create(
        broker=broker, queue="dead", began_at=timezone.now(), **stated
    )


def again(message: Message, **headers: Any) -> Message:
    """As a quorum queue delivers it a second time."""
    stated = {"x-delivery-count": 1, **message.headers, **headers}
    properties = build_properties(stated, **message.properties.stated())
    return Message(message.exchange, message.routing_key, properties, message.body, True)


def marked(session: ParkSession, *messages: Message) -> list[int | None]:
    return find_earlier(session, [store.prepare(message, session.queue) for message in messages])


def of(name: str) -> Message:
    return a_message(message_id=name)


def test_the_fact_of_a_parked_message_names_the_replay_that_sent_it() -> None:
    message = again(of("a"), **{REPLAY_HEADER: "batch:1"})
    assert store_batch.stated(store.prepare(message, "dead")).replay_id == "batch:1"
    assert store_batch.stated(store.prepare(of("a"), "dead")).replay_id == ""


@pytest.mark.django_db
def test_only_what_is_flagged_and_not_surely_acknowledged_may_be_a_repeat(broker: Broker) -> None:
    before = a_session(broker)
    one, two, three = ParkingWriter(before).store_messages([of("a"), of("b"), of("c")])
    ParkSession.objects.filter(pk=before.pk).update(acked_to=one)
    now = a_session(broker)
    assert marked(now, of("b")) == [None]
    flagged = [replace(of(name), redelivered=True) for name in ("a", "b", "new")]
    assert marked(now, *flagged) == [None, two, None]
    assert marked(now, again(of("c"), tenant=1)) == [None]
    assert marked(now, again(of("c"))) == [three]


@pytest.mark.django_db
def test_what_a_queue_took_back_from_the_same_session_is_a_repeat_by_its_count(
    broker: Broker,
) -> None:
    """However sure its ack seemed: a queue that does not answer seems to have had it."""
    session = a_session(broker)
    one, two = ParkingWriter(session).store_messages([of("a"), again(of("b"))])
    ParkSession.objects.filter(pk=session.pk).update(acked_to=two)
    only_flagged = replace(of("a"), redelivered=True)
    assert marked(session, only_flagged, again(of("b")), of("a")) == [None, None, None]
    twice = again(of("b"), **{"x-acquired-count": 1})
    for now in (session, a_session(broker)):
        assert marked(now, again(of("a")), again(of("a")), twice) == [one, None, two]
    ParkedMessage.objects.update(parked_at=timezone.now() - timedelta(hours=2))
    assert marked(session, again(of("a"))) == [one]
    assert marked(a_session(broker), again(of("a"))) == [None]


@pytest.mark.django_db
def test_sessions_that_left_doubt_are_as_many_as_they_like(broker: Broker) -> None:
    (old,) = ParkingWriter(a_session(broker)).store_messages([of("a")])
    ParkSession.objects.bulk_create(
        ParkSession(broker=broker, queue="dead", began_at=NOW, stored_to=old) for _ in range(1100)
    )
    assert marked(a_session(broker), again(of("a"))) == [old]


@pytest.mark.django_db
def test_each_parked_message_has_one_repeat_and_the_next_repeats_the_repeat(broker: Broker) -> None:
    first = a_session(broker)
    one, two = ParkingWriter(first).store_messages([of("a"), of("a")])
    second = a_session(broker)
    writer = ParkingWriter(second)
    writer.store_messages([again(of("a")), again(of("a")), again(of("a"))])
    pairs = list(ParkedMessage.objects.filter(session=second).values_list("repeat_of", flat=True))
    assert sorted(pairs, key=lambda key: key or 0) == [None, one, two]
    assert writer.repeats == 2
    third = a_session(broker)
    newest = ParkedMessage.objects.filter(session=second).values_list("pk", flat=True)
    assert set(marked(third, again(of("a")), again(of("a")), again(of("a")))) == set(newest)


@pytest.mark.django_db
def test_another_queue_has_other_parked_messages(broker: Broker) -> None:
    before = a_session(broker)
    before.queue = "other"
    before.save()
    ParkingWriter(before).store_messages([of("a")])
    assert marked(a_session(broker), again(of("a"))) == [None]


def test_what_a_queue_counts_is_no_difference() -> None:
    plain = of("a").properties.raw
    assert identity(again(of("a")).properties.raw) == plain
    assert identity(b"x-delivery-count garbage") == b"x-delivery-count garbage"


@pytest.mark.parametrize(
    ("reported", "limit"),
    [
        ({"type": "classic"}, None),
        ({"type": "quorum"}, 20),
        ({}, 20),
        ({"type": "quorum", "arguments": {"x-delivery-limit": 7}}, 7),
        ({"type": "quorum", "arguments": {"x-delivery-limit": -1}}, None),
        (
            {
                "type": "quorum",
                "arguments": {"x-delivery-limit": 9},
                "effective_policy_definition": {"delivery-limit": 5},
            },
            5,
        ),
        ({"type": "quorum", "arguments": [], "effective_policy_definition": "odd"}, 20),
    ],
)
def test_the_delivery_limit_is_the_least_that_is_said(reported: Any, limit: int | None) -> None:
    assert make_limits(reported, 1500).deliveries == limit


def test_large_messages_make_the_prefetch_small() -> None:
    assert (
        make_limits({"type": "classic", "messages": 10, "message_bytes": 10}, 1500).prefetch == 1500
    )
    large = {"type": "classic", "messages": 10, "message_bytes": 10 * 10_000_000}
    assert make_limits(large, 1500).prefetch == 13
    assert (
        make_limits({"type": "classic", "messages": 1, "message_bytes": 10**12}, 1500).prefetch == 2
    )
    assert make_limits({"type": "quorum"}, 100).prefetch == 100
    assert make_limits({"type": "quorum"}, 1500).prefetch == 900


@pytest.mark.parametrize("limit", [1, 5])
def test_at_a_low_limit_each_is_near_its_end_and_comes_alone(limit: int) -> None:
    limits = make_limits({"type": "quorum", "arguments": {"x-delivery-limit": limit}}, 1500)
    assert limits.prefetch == 1
    assert limits.is_near(of("never delivered before"))
    assert not make_limits({"type": "quorum"}, 1500).is_near(of("never delivered before"))


def test_a_queue_that_destroys_what_is_put_back_is_not_taken_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported = {"type": "quorum", "arguments": {"x-delivery-limit": 0}}
    monkeypatch.setattr(Management, "queue", lambda *args: reported)
    monkeypatch.setattr(Management, "policies", lambda *args: [])
    monkeypatch.setattr(Management, "operator_policies", lambda *args: [])
    with pytest.raises(Conflict, match="delivery limit 0"):
        limits_of(Broker(amqp_addresses="127.0.0.1"), "dead")


@pytest.mark.django_db
def test_what_stands_before_one_that_is_near_its_limit_is_not_given_up(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[tuple[int, bool]] = []

    def hold(
        self: ParkingWriter, messages: Sequence[Message], *, for_good: bool, **more: Any
    ) -> Any:
        held.append((len(messages), for_good))
        return list(range(1, len(messages) + 1))

    monkeypatch.setattr(ParkingWriter, "store_patiently", hold)
    taking = Taking(Quiet(), ParkingWriter(a_session(broker)), Limits(900, 20))
    counts = [0, 0, 15, 0]
    deliveries = [
        delivered(a_message(headers={"x-delivery-count": count}), place, NOW)
        for place, count in enumerate(counts, start=1)
    ]
    taking.store(deliveries, stop=Event(), report=lambda trouble: None)
    assert held == [(2, True), (1, True), (1, False)]


class Quiet(Consumer):
    """A consumer without a connection."""

    def __init__(self) -> None:
        pass

    def ack(self, tags: object = (), *, through: int = 0) -> None:
        pass


def test_one_that_is_near_its_limit_is_kept_alone() -> None:
    counts = [0, 14, 15, 20, None, "many"]
    deliveries = [
        delivered(a_message(headers={"x-delivery-count": count, "n": place}), place, NOW)
        for place, count in enumerate(counts)
    ]
    runs = [[d.tag for d in run] for run in Limits(900, 20).runs(deliveries)]
    assert runs == [[0, 1], [2], [3], [4, 5]]
    assert [len(run) for run in Limits(900, None).runs(deliveries)] == [6]


NOW = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.mark.parametrize(
    ("wanted", "taken", "left"),
    [
        (["a.1", "b.1"], ["a.1"], ["b.1"]),
        (["a.1", "a.3"], ["a.1"], ["a.2"]),
        (["a.1", "a.3"], ["a.3"], ["a.1"]),
        (["a.1"], [], ["a.1"]),
    ],
)
def test_those_behind_a_taken_one_of_equal_content_move_up(
    wanted: Sequence[str], taken: Sequence[str], left: Sequence[str]
) -> None:
    assert park_queue.find_missing(wanted, taken) == left


@pytest.mark.django_db
def test_an_ack_is_sure_some_time_after_the_broker_has_answered(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(consume, "monotonic", lambda: clock[0])
    row = a_session(broker)
    acks = consume.Acks(row)
    acks.sent(7)
    clock[0] += 3
    acks.sent(9)
    acks.confirmed()
    row.refresh_from_db()
    assert row.acked_to == 0
    clock[0] += consume.SURE_AFTER_SECONDS - 1
    assert acks.are_due
    acks.confirmed()
    row.refresh_from_db()
    assert (row.acked_to, row.ended_at) == (7, None)
    acks.ended()
    row.refresh_from_db()
    assert row.acked_to == 7
    assert row.ended_at is not None


@pytest.mark.django_db
def test_what_was_acknowledged_long_before_the_end_is_sure(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(consume, "monotonic", lambda: clock[0])
    row = a_session(broker)
    acks = consume.Acks(row)
    acks.sent(7)
    clock[0] += consume.SURE_AFTER_SECONDS + 1
    acks.sent(9)
    acks.ended()
    row.refresh_from_db()
    assert row.acked_to == 7


@pytest.mark.django_db(transaction=True)
def test_a_database_that_refuses_is_asked_again_and_then_given_up(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ParkingWriter(a_session(broker))
    said: list[str] = []

    def refuse(self: ParkingWriter, *args: Any) -> list[int]:
        raise OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(ParkingWriter, "store_messages", refuse)
        patch.setattr(store_batch, "HOLD_SECONDS", 0.1)
        patch.setattr(store_batch, "RETRY_SECONDS", 0.05)
        with pytest.raises(StoreFailed, match="database or disk is full"):
            writer.store_patiently([a_message(b"12345")], stop=Event(), report=said.append)
    assert said
    assert writer.space.refused_bytes == 5
    assert writer.store_patiently([a_message(b"12345")], stop=Event(), report=said.append)
    assert writer.space.refused_bytes == 0


@pytest.mark.django_db(transaction=True)
def test_a_commit_whose_answer_was_lost_is_not_repeated(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ParkingWriter(a_session(broker))
    first = writer.store_messages([of("before")])
    commit = ParkingWriter._commit
    parking = Parking.objects.create(broker=broker, queue="dead")
    writer.session.parking = parking

    def lose(self: ParkingWriter, *args: Any) -> None:
        commit(self, *args)
        monkeypatch.setattr(ParkingWriter, "_commit", commit)
        raise OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(ParkingWriter, "_commit", lose)
    monkeypatch.setattr(store_batch, "RETRY_SECONDS", 0.0)
    parked_messages = writer.store_patiently(
        [of("a"), of("b")], stop=Event(), report=lambda trouble: None
    )
    rows = ParkedMessage.objects.exclude(pk__in=first).order_by("pk")
    assert parked_messages == list(rows.values_list("pk", flat=True))
    assert [row.message_id for row in rows] == ["a", "b"]
    assert (writer.stored, writer.session.stored_to) == (3, parked_messages[-1])
    parking.refresh_from_db()
    assert parking.parked == 2
    assert (
        writer.store_patiently([of("c")], stop=Event(), report=lambda trouble: None)
        > parked_messages
    )


@pytest.mark.django_db
def test_a_session_that_was_cleaned_away_is_there_with_its_first_parked_message(
    broker: Broker,
) -> None:
    row = a_session(broker)
    ParkSession.objects.filter(pk=row.pk).delete()
    (parked_message,) = ParkingWriter(row).store_messages([of("a")])
    found = ParkSession.objects.get()
    assert (found.pk, found.stored_to) == (row.pk, parked_message)


@pytest.mark.django_db
def test_room_is_looked_for_and_leaves_nothing() -> None:
    SpaceCheck(refused_bytes=1_000_000).check()
    assert not Body.objects.exists()


DEAD = Queue("dead")


def confirmed(broker: Broker, **stated: Any) -> DeadLetterQueue:
    values: dict[str, Any] = {"is_confirmed": True, "decided_at": timezone.now()}
    return DeadLetterQueue.objects.create(broker=broker, queue="dead", **(values | stated))


@pytest.mark.parametrize(
    ("queue", "why"),
    [
        (None, "no queue with this name"),
        (Queue("delayboard.tap.orders"), "a tap of Delayboard"),
        (Queue("dead", arguments=Arguments({"x-queue-type": "stream"})), "stream"),
        (Queue("dead", arguments=Arguments({"x-queue-type": "odd"})), "“odd”"),
        (DEAD, "Mark the queue first"),
    ],
)
def test_what_may_not_be_parked(queue: Queue | None, why: str) -> None:
    assert why in park_request.refusal(None, queue)
    assert "Mark the queue first" in park_request.refusal(DeadLetterQueue(is_confirmed=False), DEAD)
    assert park_request.refusal(DeadLetterQueue(is_confirmed=True), DEAD) == ""


@pytest.mark.django_db
def test_watching_is_switched_once_and_written_down(broker: Broker, user: User) -> None:
    row = confirmed(broker)
    snapshot = a_snapshot(Definitions.of([DEAD]))
    for _ in range(2):
        park_request.set_automatic_parking(user, broker, "dead", snapshot, on=True)
    row.refresh_from_db()
    assert (row.parks_automatically, row.watched_by) == (True, user)
    park_request.set_automatic_parking(user, broker, "dead", None, on=False)
    row.refresh_from_db()
    assert not row.parks_automatically
    actions = AuditEntry.objects.order_by("pk").values_list("action", flat=True)
    assert list(actions) == ["automatic parking started", "automatic parking stopped"]
    with pytest.raises(park_request.ParkError, match="does not answer"):
        park_request.set_automatic_parking(user, broker, "dead", None, on=True)
    with pytest.raises(park_request.ParkError):
        park_request.set_automatic_parking(user, broker, "other", snapshot, on=False)


ODD_HANDLE = "é" * 32 + ".00000000.1"


@pytest.mark.django_db
@pytest.mark.parametrize("handles", [[], ["x"], ["a" * 32], ["a" * 32 + ".1"], [ODD_HANDLE]])
def test_only_handles_of_a_list_are_taken(broker: Broker, user: User, handles: list[str]) -> None:
    confirmed(broker)
    with pytest.raises(park_request.ParkError, match="Select 1 to 200 messages"):
        park_request.park_these(user, broker, "dead", a_snapshot(Definitions.of([DEAD])), handles)
    assert not Work.objects.exists()


@pytest.mark.django_db
def test_a_parking_whose_database_is_full_is_given_back_and_says_why(
    broker: Broker, user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    confirmed(broker)
    parking = park_request.park_all(user, broker, "dead", a_snapshot(Definitions.of([DEAD])))
    claimed = work.claim((park_queue.KIND,), "worker")
    assert claimed is not None

    def refuse(self: SpaceCheck) -> None:
        raise store_batch.store_failure(OperationalError("database or disk is full"))

    monkeypatch.setattr(SpaceCheck, "check", refuse)
    work.attempt(park_queue.park, claimed, stop=Event())
    row = Parking.objects.get(pk=parking.pk).work
    assert row is not None
    assert row.state == WorkState.WAITING
    assert "cannot store messages" in row.error
    park_request.cancel(user, Parking.objects.get())
    assert Parking.objects.get().is_ended
    with pytest.raises(park_request.ParkError):
        park_request.cancel(user, Parking.objects.get())
