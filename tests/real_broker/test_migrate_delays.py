"""Moving waiting messages on real brokers: each arrives once or is marked, at its time."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from threading import Event

import pytest
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from django.urls import reverse

from analytics import facts
from analytics.models import Recording, ScheduledMessage
from delayboard.changes.request import request, undo
from delayboard.delay_migration import migrate as migrations
from delayboard.delay_migration import move_messages
from delayboard.delay_migration.check import read_depths
from delayboard.delay_migration.migrate import KIND, attend, migrate
from delayboard.delay_migration.move_messages import WINDOW, malformed_queue
from delayboard.delay_migration.places import DELAY_HEADER, Place
from delayboard.demo.node import PrivateNode
from delayboard.models import ChangeKind, DelayMigration, MovedMessage, ScheduledChange
from tests.analytics.builders import follow_log
from tests.brokers import Vhost, every_generation, vhost_on
from tests.builders import (
    address_of,
    applied_levels,
    applied_topology,
    declare_in,
    eventually,
    make_broker,
)
from tests.publishing import publisher
from tests.real_broker.changing import consuming, store
from tests.real_broker.holding import recording
from tests.real_broker.refusing import refuse_beside
from tests.site.page_setup import signed_in
from tests.topology.builders import a_queue
from topology import work
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.amqp.pipeline import pipeline
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Binding, Exchange, Queue
from topology.message import DOUBLED_HEADER, PUBLISHED_AT_HEADER, Message, Publish
from topology.models import AuditEntry, Broker, Role, Topology, Work, WorkState
from topology.operations import adopt, provision
from topology.operations.ownership import Refusal
from topology.operations.provision import apply
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels.params import Params, level_name
from topology.patterns.delay_levels.pattern import delay_levels, split_key
from topology.patterns.hold_queues import params as hold_params
from topology.patterns.hold_queues.pattern import hold_queues

pytestmark = pytest.mark.django_db(transaction=True)
OLD = Params("own", "old", 12, timedelta(milliseconds=50), "classic")
NEW = Params("own", "new", 12, timedelta(milliseconds=50), "quorum")
SECOND = timedelta(seconds=1)


@pytest.fixture
def source(vhost: Vhost) -> Topology:
    return applied_levels(vhost, OLD)


@pytest.fixture
def target(source: Topology) -> Topology:
    return levels(source.broker, NEW)


@pytest.fixture
def management(vhost: Vhost) -> Iterator[Management]:
    with Management(address_of(vhost)) as session:
        session.declare_queue(Queue("work"))
        yield session


def levels(broker: Broker, params: Params) -> Topology:
    return applied_topology(create_topology(None, broker, delay_levels.KIND, params))


def delay_all(
    vhost: Vhost, waits: dict[str, timedelta], params: Params = OLD, destination: str = "work"
) -> dict[str, datetime]:
    """Publish each with its delay; when each is due.

    With few on the way, or a busy broker has the later ones long after their stamps.
    """
    dues = {}
    with pipeline(address_of(vhost), "test") as channel:
        channel.declare(delay_levels.route(params, SECOND, destination).declares)
        for name, wait in waits.items():
            route = delay_levels.route(params, wait, destination)
            now_ms = time.time_ns() // 1_000_000
            properties = build_properties(
                {PUBLISHED_AT_HEADER: now_ms}, message_id=name, delivery_mode=2
            )
            channel.publish(Publish(route.exchange, route.routing_key, properties, b"{}"), name)
            dues[name] = datetime.fromtimestamp(now_ms / 1000, UTC) + delay_levels.achievable(
                params, wait
            )
            while channel.in_flight > 50:
                channel.answers(5)
        while channel.in_flight:
            channel.answers(5)
    return dues


def arrived(vhost: Vhost, number: int) -> list[tuple[str, datetime, bool]]:
    """What comes: its id, when, and whether it is marked; at least so many different ones."""
    got: list[tuple[str, datetime, bool]] = []
    with Consumer(address_of(vhost), "work") as consumer:
        until = time.monotonic() + 120
        while len({name for name, *_ in got}) < number and time.monotonic() < until:
            for one in consumer.batch(limit=500, limit_bytes=10**7, wait=0.5, linger=0):
                consumer.ack(through=one.tag)
                name = one.message.properties.message_id or ""
                is_marked = DOUBLED_HEADER in one.message.headers
                got.append((name, one.received_at, is_marked))
    return got


def test_each_message_arrives_once_at_its_time_whatever_level_it_was_in(
    vhost: Vhost, management: Management, source: Topology, target: Topology
) -> None:
    waits = {f"m{n}": timedelta(seconds=random.uniform(15, 30)) for n in range(300)}
    with consuming(vhost, ["work"]) as found:
        dues = delay_all(vhost, waits)
        tally = migrate(source, target, owner="test")
        assert (tally.moved, tally.malformed, tally.remaining, tally.is_empty) == (300, 0, 0, True)
        eventually(lambda: found.number >= 300, "all arrive", seconds=90)
    assert Counter(found.ids("work")) == dict.fromkeys(waits, 1)
    for name, at in found.by_queue["work"]:
        assert timedelta(0) <= at - dues[name] <= SECOND, name
    assert DelayMigration.objects.get().moved == 300
    assert not MovedMessage.objects.exists()


@pytest.mark.usefixtures("least_account")
def test_what_is_moved_waits_in_the_target_only(
    vhost: Vhost, management: Management, source: Topology, target: Topology
) -> None:
    """A source that waits for its tap to see them leave would call them overdue."""
    delay_all(vhost, {"m": timedelta(seconds=30)})
    message = Message("old", "0.work", build_properties({}, message_id="m"), b"{}")
    row = store(source, message, "work", timedelta(seconds=30))
    request(None, [row], ChangeKind.CANCEL)
    with pytest.raises(Refusal, match="1 requested change"):
        migrate(source, target, owner="test")
    undo(None, ScheduledChange.objects.get())
    assert migrate(source, target, owner="test").moved == 1
    row.refresh_from_db()
    assert row.left_at is not None
    (_, fact) = facts.oldest(1)[0]
    assert (fact.kind, fact.topology, fact.key) == ("moved", source.slug, "m")
    assert fact.routing_key.endswith(".work")


def test_what_another_queue_refused_stays_and_is_moved_again_marked(
    vhost: Vhost, management: Management, source: Topology, target: Topology
) -> None:
    for level in range(NEW.levels):
        refuse_beside(management, level_name(NEW, level), "#")
    delay_all(vhost, {"m": timedelta(seconds=20)})
    tally = migrate(source, target, owner="test")
    assert (tally.moved, tally.remaining, tally.is_empty) == (0, 1, False)
    assert "“log” is full and rejects messages. It may have arrived in" in tally.why_remaining
    row = DelayMigration.objects.get()
    assert (row.is_paused, row.moved, row.doubled) == (True, 0, 0)
    management.delete_queue("log", only_if_empty=False)
    tally = migrate(source, target, owner="test")
    assert (tally.moved, tally.doubled, tally.is_empty) == (1, 1, True)
    with consuming(vhost, ["work"]) as found:
        eventually(lambda: found.number >= 2, "both arrive", seconds=60)
    assert found.doubled("work") == {"m": 1}


def test_what_another_consumer_holds_keeps_the_migration_open(
    vhost: Vhost,
    management: Management,
    source: Topology,
    target: Topology,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not ready, and comes back, or its source delivers it."""
    monkeypatch.setattr(move_messages, "REPORT_SECONDS", 0.0)
    delay_all(vhost, {"m": timedelta(seconds=100)})
    (queue,) = read_depths(source, [level_name(OLD, level) for level in range(OLD.levels)])
    with getter(address_of(vhost), queue) as holder:
        assert holder.get()
        eventually(lambda: read_depths(source, [queue], "messages_unacknowledged"), "a report")
        tally = migrate(source, target, owner="test")
    assert (tally.moved, tally.is_empty) == (0, False)
    problem = (
        f"Another consumer received messages of “{queue}” and did not acknowledge them: 1. "
        "Stop the consumer."
    )
    assert DelayMigration.objects.get().work.error.startswith(problem)
    monkeypatch.undo()
    assert migrate(source, target, owner="test").moved == 1


class Killed(BaseException):
    """In place of a kill: nothing after it, and connections that just break."""


# tests/faults/test_migration_kills.py kills for each run of the suite.
@pytest.mark.long
@pytest.mark.parametrize(("messages", "kills"), [(1_200, 5), (20_000, 10)])
def test_kills_double_what_was_not_acknowledged_and_mark_it(
    vhost: Vhost,
    management: Management,
    source: Topology,
    target: Topology,
    monkeypatch: pytest.MonkeyPatch,
    messages: int,
    kills: int,
) -> None:
    # What is due between two runs is delivered by its source too.
    length = 70 + messages / 100
    waits = {
        f"m{n}": timedelta(seconds=random.uniform(length, length + 10)) for n in range(messages)
    }
    dues = delay_all(vhost, waits)
    left = 0
    whole, settle = Consumer.ack, Consumer.give_back

    def give_back(self: Consumer) -> None:
        if left >= 0:
            settle(self)

    monkeypatch.setattr(Consumer, "give_back", give_back)

    def ack(self: Consumer, *tags: object, **more: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        whole(self, *tags, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Consumer, "ack", ack)
    # An acknowledgement is of a window at most: some messages are left for the last kill.
    most = messages // WINDOW // kills - 1
    died = 0
    while True:
        left = random.randint(0, most) if died < kills else 10**9
        try:
            tally = migrate(source, target, owner="test")
            break
        except Killed:
            died += 1
            Work.objects.update(leased_until_at=Now())
    assert died == kills
    assert tally.is_empty
    entries = AuditEntry.objects.filter(action="delays migrated").order_by("pk")
    outcomes = list(entries.values_list("outcome", flat=True))
    assert outcomes == ["interrupted: its process ended"] * kills + ["done"]
    got = arrived(vhost, messages)
    assert {name for name, *_ in got} == set(waits)
    often = Counter(name for name, *_ in got)
    marked = {name for name, _, is_marked in got if is_marked}
    assert {name for name, number in often.items() if number > 1} <= marked
    assert len(got) - messages <= kills * WINDOW
    assert all(at >= dues[name] for name, at, _ in got)
    # Each left the source once, whatever was stated again.
    stated = {fact.event_id: fact.key for _, fact in facts.oldest(10**6)}
    assert sorted(stated.values()) == sorted(waits)


def test_what_its_source_may_deliver_before_a_killed_migration_goes_on_is_marked(
    vhost: Vhost,
    management: Management,
    source: Topology,
    target: Topology,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And it goes on where it was killed, not at the top."""
    delay_all(vhost, {"soon": 25 * SECOND, "later": 100 * SECOND})
    with monkeypatch.context() as patched:

        def die(*_: object, **__: object) -> None:
            raise Killed

        patched.setattr(Consumer, "give_back", lambda self: None)
        patched.setattr(Consumer, "ack", die)
        with pytest.raises(Killed):
            migrate(source, target, owner="test")
    Work.objects.update(leased_until_at=Now())
    MovedMessage.objects.create(
        migration=DelayMigration.objects.get(), key="soon", queue=level_name(OLD, 8)
    )
    visited = []
    empty = move_messages.Run.empty

    def visit(self: move_messages.Run, place: Place, *more: object) -> None:
        visited.append(place.queue)
        empty(self, place, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(move_messages.Run, "empty", visit)
    assert migrate(source, target, owner="test").moved == 2
    top_down = [level_name(OLD, level) for level in reversed(range(OLD.levels))]
    assert visited[: 9 + OLD.levels] == [*top_down[-9:], *top_down]
    soon = first_in(vhost, level_name(NEW, 8))
    assert (soon.properties.message_id, soon.headers[DOUBLED_HEADER]) == ("soon", "1")


@pytest.mark.usefixtures("least_account")
def test_malformed_messages_go_to_their_queue_and_stop_nothing(
    vhost: Vhost, management: Management, source: Topology, target: Topology
) -> None:
    delay_all(vhost, {"good": timedelta(seconds=20)})
    route = delay_levels.route(OLD, timedelta(seconds=100), "work")
    with publisher(address_of(vhost), "test") as channel:
        stated = {PUBLISHED_AT_HEADER: time.time_ns() // 1_000_000, DELAY_HEADER: 2**60}
        properties = build_properties(stated, expiration="90000")
        channel.publish(Publish(route.exchange, route.routing_key, properties, b"bad"))
    tally = migrate(source, target, owner="test")
    assert (tally.moved, tally.malformed, tally.is_empty) == (1, 1, True)
    assert [name for name, *_ in arrived(vhost, 1)] == ["good"]
    queue = management.queue(malformed_queue(source))
    assert queue["durable"]
    with Consumer(address_of(vhost), malformed_queue(source)) as consumer:
        (one,) = consumer.batch(limit=1, limit_bytes=10**6, wait=10, linger=0)
        assert one.message.body == b"bad"
        # It would be lost when it expires in this queue.
        assert one.message.properties.expiration is None
        # Nothing else says for whom it was.
        headers = one.message.headers
        assert headers["x-opt-delayboard-routing-key"] == route.routing_key
        assert headers["x-opt-delayboard-reason"] == "The delay of the message is too long."


def test_messages_without_a_publish_time_stay_and_pause_the_migration(
    vhost: Vhost, management: Management, source: Topology, target: Topology
) -> None:
    delay_all(vhost, {"good": timedelta(seconds=20)})
    route = delay_levels.route(OLD, timedelta(seconds=100), "work")
    with publisher(address_of(vhost), "test") as channel:
        properties = build_properties({}, message_id="undated")
        channel.publish(Publish(route.exchange, route.routing_key, properties, b"{}"))
    migrations.request(None, source, target)
    paused = work_off()
    assert (paused.moved, paused.malformed, paused.is_paused) == (1, 0, True)
    assert work.claim((KIND,), "worker") is None
    page = migration_page(source, target)
    assert "1 message remains in the source. A message without a publish time" in page
    assert "Resume migration" in page
    # By choice they do not wait for the end of their delay.
    assert 'name="takes_undated"' in page
    migrations.resume(None, source, takes_undated=True)
    done = work_off()
    assert (done.moved, done.malformed, done.work.state) == (1, 1, WorkState.DONE)
    queued = first_in(vhost, malformed_queue(source))
    assert queued.properties.message_id == "undated"
    assert sorted(name for name, *_ in arrived(vhost, 1)) == ["good"]


def test_a_message_without_a_publish_time_is_moved_by_its_recorded_due_time(
    vhost: Vhost, management: Management, source: Topology, target: Topology
) -> None:
    """Where two of the same content are due at two times, nothing says which one it is."""
    route = delay_levels.route(OLD, 100 * SECOND, "work")
    messages = {
        name: Message(route.exchange, route.routing_key, build_properties({}, message_id=name), b"")
        for name in ("known", "twin")
    }
    with publisher(address_of(vhost), "test") as channel:
        channel.declare(route.declares)
        for one in messages.values():
            channel.publish(Publish(one.exchange, one.routing_key, one.properties, one.body))
    store(source, messages["known"], "work", 90 * SECOND)
    for wait in (90, 95):
        store(source, messages["twin"], "work", wait * SECOND)
    tally = migrate(source, target, owner="test")
    assert (tally.moved, tally.remaining) == (1, 1)
    moved = first_in(vhost, level_name(NEW, 10))
    assert moved.properties.message_id == "known"
    units = int(split_key(NEW, moved.routing_key)[0], 2)
    assert 85 <= units * NEW.unit.total_seconds() <= 91


def test_a_destination_that_is_gone_keeps_its_messages_in_the_source(
    vhost: Vhost, management: Management, source: Topology, target: Topology
) -> None:
    delay_all(vhost, {"m": timedelta(seconds=100)})
    management.delete_queue("work", only_if_empty=False)
    tally = migrate(source, target, owner="test")
    assert (tally.moved, tally.remaining, tally.is_empty) == (0, 1, False)
    assert "work" in tally.why_remaining
    level = level_name(OLD, 10)
    eventually(lambda: management.queue(level).get("messages") == 1, "it is still there")


def test_a_level_that_loses_its_binding_loses_no_message_to_its_tap(
    vhost: Vhost,
    management: Management,
    source: Topology,
    target: Topology,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tap beside the binding confirms alone."""
    delay_all(vhost, {f"m{n}": timedelta(seconds=30) for n in range(10)})
    names = {level_name(NEW, level) for level in range(NEW.levels)}
    lost = [one for one in delay_levels.definitions(NEW).bindings if one.destination in names]
    lost = [one for one in lost if one.destination_is_queue]
    bind = move_messages.Run._bind

    def bind_and_lose(self: move_messages.Run, *more: object) -> None:
        bind(self, *more)  # type: ignore[arg-type]
        for binding in lost:
            management.unbind(binding)

    monkeypatch.setattr(move_messages.Run, "_bind", bind_and_lose)
    with pytest.raises(Refusal, match="differ from their definition"):
        migrate(source, target, owner="test")
    monkeypatch.undo()
    # On a busy machine all of them are due so soon by now, and so are marked.
    monkeypatch.setattr(move_messages, "RESUMED_WITHIN", timedelta(0))
    apply(None, target)
    begun = MovedMessage.objects.count()
    assert begun
    tally = migrate(source, target, owner="test")
    assert (tally.moved, tally.doubled, tally.remaining) == (10, begun, 0)
    assert sorted(name for name, *_ in arrived(vhost, 10)) == sorted(f"m{n}" for n in range(10))


def work_off(times: int = 1) -> DelayMigration:
    """As the worker's task does."""
    for _ in range(times):
        Work.objects.filter(state=WorkState.WAITING).update(not_before_at=None)
        claimed = work.claim((KIND,), "worker")
        assert claimed is not None
        work.attempt(attend, claimed, stop=Event())
    return DelayMigration.objects.select_related("work").get()


def test_a_worker_migrates_what_the_page_requests_and_goes_on_while_there_are_publishers(
    vhost: Vhost, management: Management, source: Topology, target: Topology
) -> None:
    delay_all(vhost, {"a": 100 * SECOND, "b": 100 * SECOND})
    Recording.objects.create(topology=source, read_at=datetime.now(UTC))
    message = Message("old", "0.work", build_properties({}, message_id="a"), b"{}")
    row = store(source, message, "work", 100 * SECOND)
    client, address = signed_in(Role.OPERATOR), reverse("delay_migration_request", args=["x"])
    address = address.replace("x", source.slug)
    form = {"target": target.slug}
    assert "to confirm</label>" in client.post(address, form).content.decode()
    assert not DelayMigration.objects.exists()
    page = client.post(address, form | {"confirm_broker": source.broker.name}, follow=True)
    assert "Pause migration" in page.content.decode()
    migration = work_off()
    assert (migration.moved, migration.work.state) == (2, WorkState.WAITING)
    client.post(reverse("delay_migration_pause", args=[source.slug]))
    assert work.claim((KIND,), "worker") is None
    delay_all(vhost, {"c": 100 * SECOND})
    assert "Resume migration" in migration_page(source, target)
    client.post(reverse("delay_migration_continue", args=[source.slug]))
    migration = work_off()
    assert (migration.moved, migration.work.state) == (3, WorkState.WAITING)
    type(row).objects.update(entered_at=datetime.now(UTC) - timedelta(hours=1))
    assert work_off().work.state == WorkState.DONE
    assert work.claim((KIND,), "worker") is None
    actions = AuditEntry.objects.filter(action__contains="migrat")
    assert sorted(actions.values_list("action", flat=True)) == [
        "delays migrated",
        "migration continued",
        "migration paused",
        "migration requested",
    ]


def test_a_pause_ends_a_pass_and_what_hinders_a_worker_is_shown(
    vhost: Vhost,
    management: Management,
    source: Topology,
    target: Topology,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delay_all(vhost, {f"m{n}": 100 * SECOND for n in range(400)})
    migrations.request(None, source, target)
    monkeypatch.setattr(move_messages, "PULSE_SECONDS", 0.0)
    begin = move_messages.Run._count

    def pause(self: move_messages.Run, *given: object) -> None:
        begin(self, *given)  # type: ignore[arg-type]
        migrations.pause(None, source)

    with monkeypatch.context() as patched:
        patched.setattr(move_messages.Run, "_count", pause)
        paused = work_off()
    assert 0 < paused.moved < 400
    assert (paused.is_paused, paused.work.state) == (True, WorkState.WAITING)
    migrations.resume(None, source)
    management.delete_queue("work", only_if_empty=False)
    assert "work" in work_off().work.error
    hindered = AuditEntry.objects.filter(action="delays migrated").latest("pk")
    assert hindered.outcome.startswith("paused: ")
    assert hindered.details["moved"] == paused.moved
    management.declare_queue(Queue("work"))
    assert work.claim((KIND,), "worker") is None
    migrations.resume(None, source)
    done = work_off()
    assert (done.moved, done.work.state) == (400, WorkState.DONE)


@pytest.mark.usefixtures("least_account")
def test_nservicebus_v1_moves_to_v2(vhost: Vhost, management: Management) -> None:
    """Levels of the two versions with the names and stamps of NServiceBus."""
    old, new = Params("nsb-v1"), Params("nsb-v2")
    v1 = applied_levels(vhost, old)
    v2 = levels(v1.broker, new)
    route = delay_levels.route(old, 3600 * SECOND, "work")
    stamp = datetime.now(UTC)
    headers = {
        "NServiceBus.TimeSent": f"{stamp:%Y-%m-%d %H:%M:%S}:{stamp.microsecond:06} Z",
        DELAY_HEADER: 3600,
    }
    with publisher(address_of(vhost), "test") as channel:
        channel.declare(route.declares)
        for body, stated in ((b"good", headers), (b"undated", {})):
            properties = build_properties(stated, message_id=body.decode(), delivery_mode=2)
            channel.publish(Publish(route.exchange, route.routing_key, properties, body))
    tally = migrate(v1, v2, owner="test")
    assert (tally.moved, tally.malformed, tally.remaining, tally.is_empty) == (1, 0, 1, False)
    message = first_in(vhost, level_name(new, 11))
    assert (message.properties.message_id, message.headers) == ("good", headers)
    assert 3600 - (datetime.now(UTC) - stamp).total_seconds() <= units_of(new, message) <= 3600


def first_in(vhost: Vhost, queue: str) -> Message:
    with getter(address_of(vhost), queue) as source:
        return eventually(source.get, f"a message waits in {queue}").message


def units_of(params: Params, message: Message) -> int:
    """Its delay in seconds, by the bits of its routing key."""
    return int(split_key(params, message.routing_key)[0], 2)


def test_a_shared_set_of_celery_moves_to_a_set_with_a_prefix(
    vhost: Vhost, management: Management
) -> None:
    shared, own = Params("celery"), Params("celery", "billing")
    source = applied_levels(vhost, shared)
    target = levels(source.broker, own)
    route = delay_levels.route(shared, 3600 * SECOND, "work")
    now = datetime.now(UTC)
    # Celery sets no publish time.
    eta = (now + 3600 * SECOND).isoformat()
    headers = {"task": "send", "id": "task-1", "eta": eta}
    with publisher(address_of(vhost), "test") as channel:
        channel.declare(route.declares)
        properties = build_properties(headers, message_id="task-1", delivery_mode=2)
        channel.publish(Publish(route.exchange, route.routing_key, properties, b"[]"))
    tally = migrate(source, target, owner="test")
    assert (tally.moved, tally.malformed, tally.is_empty) == (1, 0, True)
    message = first_in(vhost, level_name(own, 11))
    assert (message.properties.message_id, message.body) == ("task-1", b"[]")
    assert 3600 - (datetime.now(UTC) - now).total_seconds() <= units_of(own, message) <= 3600


@pytest.mark.generations("3.10", only=True)
def test_messages_move_to_another_broker(
    vhost: Vhost, newest_node: PrivateNode, management: Management, source: Topology
) -> None:
    """Of another version, too."""
    waits = {f"m{n}": random.uniform(15, 20) * SECOND for n in range(20)}
    dues = delay_all(vhost, waits)
    with vhost_on(newest_node) as other:
        with Management(address_of(other)) as there:
            there.declare_queue(Queue("work"))
        params = replace(NEW, prefix="there")
        row = create_topology(None, make_broker(other, name="There"), delay_levels.KIND, params)
        assert migrate(source, applied_topology(row), owner="test").moved == 20
        got = arrived(other, 20)
    assert Counter(name for name, *_ in got) == dict.fromkeys(waits, 1)
    assert all(timedelta(0) <= at - dues[name] <= SECOND for name, at, _ in got)


@pytest.mark.usefixtures("least_account")
def test_hold_queues_are_emptied_into_levels(
    vhost: Vhost, management: Management, source: Topology
) -> None:
    management.declare_exchange(Exchange("orders"))
    management.bind(Binding("orders", "work", "created"))
    params = hold_params.Params("orders", ("created",), (timedelta(seconds=20),))
    holds = applied_topology(create_topology(None, source.broker, hold_queues.KIND, params))
    route = hold_queues.route(params, timedelta(seconds=20), "created")
    now_ms = time.time_ns() // 1_000_000
    with publisher(address_of(vhost), "test") as channel:
        properties = build_properties({PUBLISHED_AT_HEADER: now_ms}, message_id="held")
        channel.publish_by(route, Publish("", route.routing_key, properties, b"{}"))
    assert migrate(holds, source, owner="test").moved == 1
    ((name, at, _),) = arrived(vhost, 1)
    late = at - datetime.fromtimestamp(now_ms / 1000, UTC) - timedelta(seconds=20)
    assert name == "held"
    assert timedelta(0) <= late <= SECOND


def adopt_golevelup(vhost: Vhost, broker: Broker, ttl_ms: int) -> Topology:
    """The chain that golevelup declares: new and failed messages wait by the same exchange."""
    wait = a_queue(f"delay.{ttl_ms}", ttl=ttl_ms, dlx="orders", key="order")
    declare_in(
        vhost,
        Exchange("orders"),
        Exchange("delay"),
        wait,
        Binding("orders", "work", "order"),
        Binding("delay", f"delay.{ttl_ms}", str(ttl_ms)),
    )
    return adopt.adopt(None, broker, "delay_chain", "work")[0]


@every_generation
def test_a_chain_of_others_is_emptied_into_levels(
    vhost: Vhost, management: Management, source: Topology, event_log: Path
) -> None:
    """golevelup states no publish time: what the tap saw is moved, each at its time."""
    ttl = timedelta(seconds=10)
    chain = adopt_golevelup(vhost, source.broker, 10_000)
    provision.start_recording(None, chain)
    dues = {}
    with recording(source.broker, chain):
        with pipeline(address_of(vhost), "test") as channel:
            for number in range(50):
                name = f"m{number}"
                properties = build_properties({}, message_id=name, delivery_mode=2)
                channel.publish(Publish("delay", "10000", properties, b"{}"), name)
                dues[name] = datetime.now(UTC) + ttl
                channel.answers(5)

        def is_listed() -> bool:
            follow_log(event_log)
            return ScheduledMessage.objects.filter(topology=chain).count() == 50

        eventually(is_listed, "all are recorded")
    assert migrate(chain, source, owner="test").moved == 50
    got = arrived(vhost, 50)
    assert Counter(name for name, *_ in got) == dict.fromkeys(dues, 1)
    late = [at - dues[name] for name, at, _ in got]
    assert timedelta(milliseconds=-100) <= min(late)
    assert max(late) <= SECOND


def test_a_chain_that_counts_attempts_by_its_dead_letters_is_not_migrated(
    vhost: Vhost, management: Management, source: Topology
) -> None:
    declare_in(
        vhost, a_queue("w", dlx="", key="w-wait"), a_queue("w-wait", ttl=60_000, dlx="", key="w")
    )
    chain = adopt.adopt(None, source.broker, "retry_chain", "w")[0]
    assert "Dead letters of “w” wait in “w-wait”" in migration_page(chain, source)
    with pytest.raises(Refusal, match="x-death counts their attempts"):
        migrate(chain, source, owner="test")


def migration_page(source: Topology, target: Topology) -> str:
    address = reverse("migrate_delays", args=[source.slug])
    page = signed_in(Role.OPERATOR).get(address, {"target": target.slug})
    return page.content.decode()


def test_the_command_and_the_page_show_the_steps_and_what_was_moved(
    vhost: Vhost, management: Management, source: Topology, target: Topology
) -> None:
    delay_all(vhost, {"m": timedelta(seconds=20)})
    out = StringIO()
    call_command("migrate_delays", source.slug, target.slug, "--dry-run", stdout=out)
    assert (
        "3. Let the publishers use the target. [unknown] The number of publishers is unknown"
        in out.getvalue()
    )
    page = migration_page(source, target)
    assert "Let the publishers use the target." in page
    assert "0 of them are known" in page
    assert not DelayMigration.objects.exists()
    call_command("migrate_delays", source.slug, target.slug, stdout=out)
    # It is due within 30 s.
    moved = "1 message moved, 1 of them marked as possibly duplicated; 0 malformed."
    assert moved in out.getvalue()
    assert "<dt>Messages moved</dt><dd>1</dd>" in migration_page(source, target)
    with pytest.raises(CommandError, match="the same topology"):
        call_command("migrate_delays", source.slug, source.slug)
    assert [name for name, *_ in arrived(vhost, 1)] == ["m"]
