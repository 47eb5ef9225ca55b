"""Moving waiting messages on real brokers: each arrives once or is marked, at its time."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.urls import reverse

from analytics.models import DueCount
from analytics.scheduled.rows import due
from delayboard.changes.request import request, undo
from delayboard.delay_migration import migrate as migrating
from delayboard.delay_migration.migrate import malformed_queue, migrate
from delayboard.models import ChangeKind, DelayMigration, MovedMessage, ScheduledChange
from tests.brokers import Vhost
from tests.builders import address_of, applied_levels, applied_topology, eventually
from tests.real_broker.changing import consuming, store
from tests.site.desk import signed_in
from topology.broker.amqp.consumer import Consumer
from topology.broker.amqp.fast_consumer import Intake
from topology.broker.amqp.pipeline import pipeline
from topology.broker.amqp.publisher import publisher
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Binding, Exchange, Queue
from topology.message import DOUBLED_HEADER, PUBLISHED_AT_HEADER, Message, Publish
from topology.models import Broker, Role, Topology, Work
from topology.operations.ownership import Refusal
from topology.operations.provision import apply
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_levels.params import Params, level_name
from topology.patterns.delay_levels.pattern import delay_levels
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


def delay_all(vhost: Vhost, waits: dict[str, timedelta]) -> dict[str, datetime]:
    """Publish each with its delay; when each is due."""
    dues = {}
    with pipeline(address_of(vhost), "test") as channel:
        channel.declare(delay_levels.route(OLD, SECOND, "work").declares)
        for name, wait in waits.items():
            route = delay_levels.route(OLD, wait, "work")
            now_ms = time.time_ns() // 1_000_000
            properties = build_properties(
                {PUBLISHED_AT_HEADER: now_ms}, message_id=name, delivery_mode=2
            )
            channel.publish(Publish(route.exchange, route.routing_key, properties, b"{}"), name)
            dues[name] = datetime.fromtimestamp(now_ms / 1000, UTC) + delay_levels.achievable(
                OLD, wait
            )
        while channel.flying:
            channel.answers(5)
    return dues


def arrived(vhost: Vhost, number: int) -> list[tuple[str, datetime, bool]]:
    """What comes: its id, when, and whether it is marked; at least so many different ones."""
    got: list[tuple[str, datetime, bool]] = []
    with Consumer(address_of(vhost), "work") as consumer:
        until = time.monotonic() + 120
        while len({name for name, *_ in got}) < number and time.monotonic() < until:
            for one in consumer.batch(limit=500, limit_bytes=10**7, wait=0.5, linger=0):
                consumer.ack_through(one)
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
        assert (tally.moved, tally.malformed, tally.left, tally.is_empty) == (300, 0, 0, True)
        eventually(lambda: found.number >= 300, "all arrive", seconds=90)
    assert Counter(found.ids("work")) == dict.fromkeys(waits, 1)
    for name, at in found.by_queue["work"]:
        assert timedelta(0) <= at - dues[name] <= SECOND, name
    assert DelayMigration.objects.get().moved == 300
    assert not MovedMessage.objects.exists()


def test_what_is_moved_waits_in_the_target_only(
    vhost: Vhost, management: Management, source: Topology, target: Topology
) -> None:
    """A source that waits for its tap to see them leave would call them overdue."""
    delay_all(vhost, {"m": timedelta(seconds=30)})
    message = Message("old", "0.work", build_properties({}, message_id="m"), b"{}")
    row = store(source, message, "work", timedelta(seconds=30))
    assert row.due_at is not None
    due.change(source, Counter({("work", row.due_at): 1}))
    request(None, [row], ChangeKind.CANCEL)
    with pytest.raises(Refusal, match="1 changes of messages"):
        migrate(source, target, owner="test")
    undo(None, ScheduledChange.objects.get())
    assert migrate(source, target, owner="test").moved == 1
    row.refresh_from_db()
    assert row.left_at is not None
    assert set(DueCount.objects.values_list("waiting", flat=True)) == {0}


class Killed(BaseException):
    """In place of a kill: nothing after it, and connections that just break."""


@pytest.mark.parametrize(
    ("messages", "kills"), [(1_200, 5), pytest.param(20_000, 10, marks=pytest.mark.long)]
)
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
    whole, settle = Intake.ack, Intake.give_back

    def give_back(self: Intake) -> None:
        if left >= 0:
            settle(self)

    monkeypatch.setattr(Intake, "give_back", give_back)

    def ack(self: Intake, *tags: object, **more: object) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        whole(self, *tags, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Intake, "ack", ack)
    # An acknowledgement is of a window at most: some messages are left for the last kill.
    most = messages // migrating.WINDOW // kills - 1
    died = 0
    while True:
        left = random.randint(0, most) if died < kills else 10**9
        try:
            tally = migrate(source, target, owner="test")
            break
        except Killed:
            died += 1
            Work.objects.update(leased_until_at=datetime.now(UTC))
    assert died == kills
    assert tally.is_empty
    got = arrived(vhost, messages)
    assert {name for name, *_ in got} == set(waits)
    often = Counter(name for name, *_ in got)
    marked = {name for name, _, is_marked in got if is_marked}
    assert {name for name, number in often.items() if number > 1} <= marked
    assert len(got) - messages <= kills * migrating.WINDOW
    assert all(at >= dues[name] for name, at, _ in got)


def test_malformed_messages_go_to_their_queue_and_stop_nothing(
    vhost: Vhost, management: Management, source: Topology, target: Topology
) -> None:
    delay_all(vhost, {"good": timedelta(seconds=20)})
    route = delay_levels.route(OLD, timedelta(seconds=100), "work")
    with publisher(address_of(vhost), "test") as channel:
        channel.publish(Publish(route.exchange, route.routing_key, build_properties({}), b"bad"))
    tally = migrate(source, target, owner="test")
    assert (tally.moved, tally.malformed, tally.is_empty) == (1, 1, True)
    assert [name for name, *_ in arrived(vhost, 1)] == ["good"]
    queue = management.queue(malformed_queue(source))
    assert queue["durable"]
    with Consumer(address_of(vhost), malformed_queue(source)) as consumer:
        (one,) = consumer.batch(limit=1, limit_bytes=10**6, wait=10, linger=0)
        assert one.message.body == b"bad"


def test_a_destination_that_is_gone_keeps_its_messages_in_the_source(
    vhost: Vhost, management: Management, source: Topology, target: Topology
) -> None:
    delay_all(vhost, {"m": timedelta(seconds=100)})
    management.delete_queue("work", only_if_empty=False)
    tally = migrate(source, target, owner="test")
    assert (tally.moved, tally.left, tally.is_empty) == (0, 1, False)
    assert "work" in tally.why_left
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
    bind = migrating._Run._bind

    def bind_and_lose(self: migrating._Run, *more: object) -> None:
        bind(self, *more)  # type: ignore[arg-type]
        for binding in lost:
            management.unbind(binding)

    monkeypatch.setattr(migrating._Run, "_bind", bind_and_lose)
    with pytest.raises(Refusal, match="differ from their definition"):
        migrate(source, target, owner="test")
    monkeypatch.undo()
    apply(None, target)
    begun = MovedMessage.objects.count()
    assert begun
    tally = migrate(source, target, owner="test")
    assert (tally.moved, tally.doubled, tally.left) == (10, begun, 0)
    assert sorted(name for name, *_ in arrived(vhost, 10)) == sorted(f"m{n}" for n in range(10))


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
    assert "3. Let the publishers use the target. [done] No message is known." in out.getvalue()
    page = migration_page(source, target)
    assert "Let the publishers use the target." in page
    assert "0 of them are known" in page
    assert not DelayMigration.objects.exists()
    call_command("migrate_delays", source.slug, target.slug, stdout=out)
    assert "1 messages moved, 0 of them may be duplicated; 0 malformed." in out.getvalue()
    assert "<dt>Messages moved</dt><dd>1</dd>" in migration_page(source, target)
    with pytest.raises(CommandError, match="the same topology"):
        call_command("migrate_delays", source.slug, source.slug)
    assert [name for name, *_ in arrived(vhost, 1)] == ["m"]
