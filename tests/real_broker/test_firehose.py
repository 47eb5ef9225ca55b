"""The firehose of a vhost on real brokers: switched with care, recorded, put back, switched off."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User

from analytics import observation
from analytics.events import MessageEvent
from analytics.models import Firehose, Gap, ScheduledMessage
from analytics.recorder import firehose_switch as firehose
from analytics.recorder import record_firehose as firehose_watch
from analytics.recorder.copies import content_of
from analytics.recorder.follow import Follower
from analytics.recorder.record_firehose import FirehoseRecorder
from analytics.scheduled.queries import listing
from analytics.scheduled.summaries import counts
from delayboard.dead_letters.queues.failures import note_failures
from delayboard.demo.node import PrivateNode
from tests.analytics.builders import logged
from tests.brokers import Vhost, call_api, every_generation
from tests.builders import address_of, applied_levels, eventually, make_broker
from tests.publishing import publisher
from tests.real_broker.holding import DELAY_MS, foreign, hold, holds, is_tracing, recording, seen
from topology.broker.amqp.consumer import Consumer
from topology.broker.errors import Refused, Unsupported
from topology.broker.management.client import Management
from topology.broker.properties.read import build_properties
from topology.definitions import Binding, Exchange, Queue
from topology.message import Publish
from topology.models import AuditEntry, Broker, Topology
from topology.patterns.delay_levels import params as delay_levels_params
from topology.patterns.delay_levels.pattern import delay_levels
from topology.provisioning import firehose as taps
from topology.provisioning.firehose import TRACE_EXCHANGE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("accounts_go")]


@pytest.fixture
def admin() -> User:
    return User.objects.create_superuser("ada", password="a long enough password")


def tag(node: PrivateNode, name: str, tags: str) -> None:
    call_api(node, "PUT", f"users/{name}", {"password": name, "tags": tags})


def seen_by(node: PrivateNode, vhost: Vhost, name: str, tags: str, **may: str) -> Broker:
    """The broker as another account enters it; its password is its name."""
    tag(node, name, tags)
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    call_api(node, "PUT", f"permissions/{vhost.name}/{name}", everything | may)
    broker = make_broker(vhost)
    broker.username = name
    broker.set_password(name)
    broker.save()
    return broker


def about(node: PrivateNode, vhost: Vhost) -> dict[str, Any]:
    """What of a vhost an operator sets."""
    reported = call_api(node, "GET", f"vhosts/{vhost.name}")
    names = ("description", "tags", "default_queue_type", "protected_from_deletion", "metadata")
    return {name: reported.get(name) for name in names}


def test_switching_changes_nothing_else_of_the_vhost(
    vhost: Vhost, broker_node: PrivateNode, admin: User
) -> None:
    stated = {"description": "Orders, “all” of them", "tags": ["shop", "a,b"]}
    stated["default_queue_type"] = "quorum"
    call_api(broker_node, "PUT", f"vhosts/{vhost.name}", stated)
    before = about(broker_node, vhost)
    assert before["tags"] == ["shop", "a,b"]
    broker = make_broker(vhost)
    row = firehose.switch_on(admin, broker)
    assert is_tracing(broker_node, vhost.name)
    assert about(broker_node, vhost) == before
    standing = firehose.read_state(broker, row)
    assert (standing.is_copying, standing.error) == (True, "")
    assert firehose.switch_off(admin, broker)
    assert not is_tracing(broker_node, vhost.name)
    assert about(broker_node, vhost) == before
    assert call_api(broker_node, "GET", f"queues/{vhost.name}") == []
    assert firehose.read_state(broker, None).is_copying is False
    done = [(entry.action, entry.outcome) for entry in AuditEntry.objects.order_by("pk")]
    assert done == [("firehose enabled", "done"), ("firehose disabled", "done")]


def test_an_account_without_the_tag_is_refused_and_nothing_changes(
    vhost: Vhost, broker_node: PrivateNode, admin: User
) -> None:
    broker = seen_by(broker_node, vhost, "low", "management")
    with pytest.raises(Refused, match="Add the tag “administrator”"):
        firehose.switch_on(admin, broker)
    assert not Firehose.objects.exists()
    assert not is_tracing(broker_node, vhost.name)
    assert call_api(broker_node, "GET", f"queues/{vhost.name}") == []
    entry = AuditEntry.objects.get(action="firehose enabled")
    assert entry.outcome.startswith("failed: The user “low”")


def test_an_administrator_who_may_not_declare_leaves_the_firehose_as_it_was(
    vhost: Vhost, broker_node: PrivateNode, admin: User
) -> None:
    broker = seen_by(broker_node, vhost, "half", "administrator", configure="^$", write="^$")
    with pytest.raises(Refused):
        firehose.switch_on(admin, broker)
    assert not is_tracing(broker_node, vhost.name)
    assert not Firehose.objects.exists()


def test_a_vhost_that_is_not_there_is_not_made_by_it(
    vhost: Vhost, broker_node: PrivateNode, admin: User
) -> None:
    broker = make_broker(vhost)
    broker.vhost = f"{vhost.name}-typo"
    broker.save()
    with pytest.raises(Refused, match="The virtual host"):
        firehose.switch_on(admin, broker)
    names = [one["name"] for one in call_api(broker_node, "GET", "vhosts")]
    assert broker.vhost not in names


@every_generation
def test_tags_that_would_be_garbled_are_left_alone(
    vhost: Vhost, broker_node: PrivateNode, admin: User
) -> None:
    call_api(broker_node, "PUT", f"vhosts/{vhost.name}", {"tags": ["größe"]})
    before = about(broker_node, vhost)
    broker = make_broker(vhost)
    if broker_node.version.startswith("3."):
        with pytest.raises(Unsupported, match="trace_on"):
            firehose.switch_on(admin, broker)
    else:
        firehose.switch_on(admin, broker)
    assert about(broker_node, vhost) == before


def test_others_who_use_the_firehose_keep_it(
    vhost: Vhost, broker_node: PrivateNode, admin: User
) -> None:
    broker = make_broker(vhost)
    firehose.switch_on(admin, broker)
    with foreign(vhost.amqp_url) as channel:
        channel.queue_declare("theirs", durable=True)
        channel.queue_bind("theirs", TRACE_EXCHANGE, "#")
    assert firehose.switch_off(admin, broker) is False
    assert is_tracing(broker_node, vhost.name)
    assert firehose.read_state(broker, None).is_copying is True


@every_generation
def test_what_others_hold_is_scheduled_and_delivered(
    vhost: Vhost, event_log: Path, admin: User
) -> None:
    broker = make_broker(vhost)
    topology = holds(broker)
    with foreign(vhost.amqp_url) as channel:
        channel.queue_declare("orders", durable=True)
    firehose.switch_on(admin, broker)
    with recording(broker), foreign(vhost.amqp_url) as channel:
        eventually(lambda: caught_up(channel, event_log), "the recorder is caught up")
        published = []
        for message_id in ("m1", "m2", "m3", None):
            published.append(datetime.now(UTC))
            held = hold(channel, "", message_id)
        scheduled = so_many(4, event_log, kind="scheduled")
        assert not seen(event_log, kind="delivered", topology=topology.slug)
        follower = Follower(event_log)
        follower.step()
        assert [row.due_at for row in listing.waiting([broker])] == [e.due_at for e in scheduled]
        take(vhost, "orders", 4, acks=False)
        for delivery in take(vhost, "orders", 4):
            assert delivery.message.headers["x-death"][0]["queue"] == held
        so_many(4, event_log, kind="delivered", redelivered=True)
        delivered = so_many(
            4, event_log, kind="delivered", topology=topology.slug, redelivered=False
        )
    for event in scheduled:
        assert (event.topology, event.source, event.queue) == (topology.slug, "firehose", held)
        assert event.published_by == f"{vhost.username} at 127.0.0.1"
        assert (event.attempt, event.destination) == (1, "orders")
        assert '"step":3' in event.headers_json
    delay = timedelta(milliseconds=DELAY_MS)
    late = [(e.due_at or at) - at - delay for e, at in zip(scheduled, published, strict=True)]
    assert min(late) >= timedelta(0)
    # The least of them: how busy the machine was is not the question.
    assert min(late) < timedelta(milliseconds=50)
    # What came back is known by its id, and without one it belongs to nothing.
    again = seen(event_log, kind="delivered", topology=topology.slug, redelivered=True)
    assert [event.message_id for event in again] == ["m1", "m2", "m3"]
    follower.step()
    assert not listing.waiting([broker]).exists()
    assert ScheduledMessage.objects.count() == 4
    assert [e.key for e in delivered] == [e.key for e in scheduled]
    for event in delivered:
        assert (event.death_queue, event.death_reason, event.deaths) == (held, "expired", 1)
        assert (event.attempt, event.caught_up) == (1, True)


def so_many(number: int, log: Path, **wanted: object) -> list[MessageEvent]:
    """Wait until exactly so many events of this kind are recorded."""

    def look() -> list[MessageEvent]:
        found = seen(log, **wanted)
        return found if len(found) == number else []

    return eventually(look, f"{number} of {wanted}")


def caught_up(channel: Any, log: Path) -> bool:
    """Publish to nowhere until a recording counts as one of the moment."""
    channel.basic_publish("amq.topic", "nowhere", b"")
    return any(event.caught_up for event in logged(log))


def take(vhost: Vhost, queue: str, number: int, *, acks: bool = True) -> list[Any]:
    """Consume so many messages as somebody's consumer; without acks all are put back."""
    taken: list[Any] = []
    with Consumer(address_of(vhost), queue) as consumer:
        while len(taken) < number:
            batch = consumer.batch(limit=number, limit_bytes=10**6, wait=60)
            assert batch, f"{len(taken)} of {number} came"
            taken += batch
        if acks:
            consumer.ack(through=taken[-1].tag)
    return taken


def test_where_a_tap_sees_the_exit_the_firehose_tells_the_entry_only(
    vhost: Vhost, event_log: Path, admin: User
) -> None:
    broker = make_broker(vhost)
    with foreign(vhost.amqp_url) as channel:
        channel.exchange_declare("shop", "topic", durable=True)
        channel.queue_declare("orders", durable=True)
        channel.queue_bind("orders", "shop", "orders")
    topology = holds(broker, "shop", 300)
    firehose.switch_on(admin, broker)
    with recording(broker), foreign(vhost.amqp_url) as channel:
        hold(channel, "shop", None, 300)
        take(vhost, "orders", 1)
        eventually(lambda: seen(event_log, kind="delivered", queue="orders"), "it was delivered")
    (entry,) = seen(event_log, topology=topology.slug)
    assert (entry.kind, entry.source) == ("scheduled", "firehose")
    (copy,) = take(vhost, topology.tap_queue, 1)
    assert content_of(copy.message) == entry.content_id


def test_reading_the_copies_makes_no_more_of_them(
    vhost: Vhost, broker_node: PrivateNode, event_log: Path, admin: User
) -> None:
    broker = make_broker(vhost)
    topology = holds(broker, "amq.topic", 100)
    row = firehose.switch_on(admin, broker)
    with recording(broker) as counters, foreign(vhost.amqp_url) as channel:
        for number in range(20):
            hold(channel, "amq.topic", f"m{number}", 100)
        eventually(lambda: len(seen(event_log, kind="scheduled")) == 20, "all are recorded")
        tap = eventually(lambda: tapped(broker_node, vhost, topology), "the tap has all")
        assert tap == 20
        # Reading another tap of ours is copied once each, and not recorded.
        take(vhost, topology.tap_queue, 20)
        looks = [depth(broker_node, vhost, firehose.tap_of(row)) for _ in range(10)]
        eventually(
            lambda: depth(broker_node, vhost, firehose.tap_of(row)) == 0, "all copies were read"
        )
        assert max(looks) < 100
        assert counters["unknown"] == 0
    assert len(logged(event_log)) == 20


def depth(node: PrivateNode, vhost: Vhost, queue: str) -> int:
    return int(call_api(node, "GET", f"queues/{vhost.name}/{quote(queue)}").get("messages", 0))


def tapped(node: PrivateNode, vhost: Vhost, topology: Topology) -> int:
    found = depth(node, vhost, topology.tap_queue)
    return found if found >= 20 else 0


def test_what_was_recorded_but_not_acknowledged_comes_again_and_is_marked(
    vhost: Vhost, event_log: Path, admin: User
) -> None:
    broker = make_broker(vhost)
    topology = holds(broker)
    row = firehose.switch_on(admin, broker)
    with foreign(vhost.amqp_url) as channel:
        for number in range(10):
            hold(channel, "", f"m{number}")
    crashed = FirehoseRecorder(broker, note_failures)
    with Consumer(broker.address, firehose.tap_of(row)) as consumer:
        crashed.put_away(consumer.batch(limit=10, limit_bytes=10**6, wait=60))
    crashed.close()
    with recording(broker):
        eventually(lambda: len(seen(event_log, topology=topology.slug)) == 20, "all came again")
    copies = Counter(event.message_id for event in seen(event_log, redelivered=False))
    assert copies == {f"m{number}": 1 for number in range(10)}
    assert len(seen(event_log, redelivered=True)) == 10
    assert not Gap.objects.exists()


def test_somebody_elses_switching_off_is_put_back_and_leaves_a_gap(
    vhost: Vhost, broker_node: PrivateNode, event_log: Path, admin: User
) -> None:
    broker = make_broker(vhost)
    topology = holds(broker)
    firehose.switch_on(admin, broker)
    with recording(broker):
        call_api(broker_node, "PUT", f"vhosts/{vhost.name}", {"tracing": False})
        eventually(lambda: is_tracing(broker_node, vhost.name), "it is on again")
        (gap,) = eventually(lambda: list(Gap.objects.all()), "the gap is written down")
        assert (gap.topology, gap.why) == (topology, firehose_watch.NOT_COPYING)
        assert gap.from_at < gap.until_at
        with foreign(vhost.amqp_url) as channel:
            hold(channel, "", "m1")
        eventually(lambda: seen(event_log, kind="scheduled"), "it is recorded again")


def test_what_stays_switched_off_is_not_put_back(
    vhost: Vhost, broker_node: PrivateNode, event_log: Path, admin: User
) -> None:
    broker = make_broker(vhost)
    holds(broker)
    firehose.switch_on(admin, broker)
    with recording(broker):
        assert firehose.switch_off(admin, broker)
    assert not is_tracing(broker_node, vhost.name)
    assert not Gap.objects.exists()
    assert call_api(broker_node, "GET", f"queues/{vhost.name}") == []


def test_levels_without_a_tap_at_their_end_are_left_by_the_firehose(
    vhost: Vhost, event_log: Path, admin: User
) -> None:
    params = delay_levels_params.Params("own", "lab", 4, timedelta(milliseconds=100))
    levels = applied_levels(vhost, params)
    broker = levels.broker
    assert observation.unobserved() == [levels]
    with foreign(vhost.amqp_url) as channel:
        channel.queue_declare("orders", durable=True)
    firehose.switch_on(admin, broker)
    assert observation.unobserved() == []
    route = delay_levels.route(params, timedelta(milliseconds=300), "orders")
    with recording(broker), publisher(broker.address, "test") as channel:
        for declared in route.declares:
            assert isinstance(declared, Binding)
            with Management(broker.address) as management:
                management.bind(declared)
        stated = build_properties(message_id="m1", delivery_mode=2)
        channel.publish(Publish(route.exchange, route.routing_key, stated, b"hello"))
        take(vhost, "orders", 1)
        (event,) = eventually(lambda: seen(event_log, topology=levels.slug), "its exit is recorded")
    assert (event.kind, event.message_id, event.requested_delay_ms) == ("delivered", "m1", 300)
    assert (event.deaths, event.death_reason) == (2, "expired")
    (published,) = seen(event_log, kind="published")
    assert published.topology == ""


def test_an_exit_tap_behind_a_destination_records_it_and_the_firehose_the_others(
    vhost: Vhost, event_log: Path, admin: User
) -> None:
    unit = timedelta(milliseconds=100)
    params = delay_levels_params.Params(
        "own", "lab", 4, unit, destinations="exchanges", exit_taps=("orders",)
    )
    with Management(address_of(vhost)) as management:
        for name in ("orders", "others"):
            management.declare_exchange(Exchange(name, "fanout"))
            management.declare_queue(Queue(name))
            management.bind(Binding(name, name, ""))
    levels = applied_levels(vhost, params)
    broker = levels.broker
    assert observation.unobserved() == [levels]
    firehose.switch_on(admin, broker)
    with recording(broker), recording(broker, levels), publisher(broker.address, "test") as channel:
        for name in ("orders", "others"):
            route = delay_levels.route(params, timedelta(milliseconds=300), name)
            stated = build_properties(message_id=name, delivery_mode=2)
            with Management(broker.address) as management:
                for declared in route.declares:
                    assert isinstance(declared, Binding)
                    management.bind(declared)
            channel.publish(Publish(route.exchange, route.routing_key, stated, b"x"))
            # Not delayed: the exit tap copies it too, and it is no delivery.
            channel.publish(Publish(name, "", stated, b"at once"))
            take(vhost, name, 2)
        events = eventually(
            lambda: found if len(found := seen(event_log, topology=levels.slug)) == 4 else [],
            "both trips are recorded",
        )
    ends = {(one.kind, one.message_id): one.source for one in events}
    assert ends == {
        ("scheduled", "orders"): "tap",
        ("delivered", "orders"): "tap",
        ("scheduled", "others"): "tap",
        ("delivered", "others"): "firehose",
    }


def test_a_queue_that_was_full_before_it_was_read_leaves_a_gap(
    vhost: Vhost,
    broker_node: PrivateNode,
    event_log: Path,
    admin: User,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(taps, "KEPT_BYTES", 20_000)
    monkeypatch.setitem(taps.ARGUMENTS, "x-max-length-bytes", 20_000)
    broker = make_broker(vhost)
    topology = holds(broker)
    row = firehose.switch_on(admin, broker)
    with foreign(vhost.amqp_url) as channel:
        for _ in range(40):
            channel.basic_publish("", "nowhere", bytes(1000))
    eventually(
        lambda: (firehose.read_state(broker, row).full or 0) >= firehose_watch.FULL, "it is full"
    )
    with recording(broker):
        (gap,) = eventually(lambda: list(Gap.objects.all()), "the gap is written down")
    assert (gap.topology, gap.why, gap.at_most) == (topology, firehose_watch.DROPPED, None)
    assert gap.from_at == row.switched_on_at
    assert 0 < len(seen(event_log, kind="published")) < 40


def test_what_waited_longer_than_copies_are_kept_leaves_a_gap(
    vhost: Vhost, event_log: Path, admin: User
) -> None:
    broker = make_broker(vhost)
    holds(broker)
    firehose.switch_on(admin, broker)
    Firehose.objects.update(read_at=datetime.now(UTC) - 2 * firehose_watch.RETENTION)
    with recording(broker):
        (gap,) = eventually(lambda: list(Gap.objects.all()), "the gap is written down")
    assert gap.why == firehose_watch.OUTDATED
    assert gap.until_at - gap.from_at >= 2 * firehose_watch.RETENTION


def test_an_account_that_loses_its_tag_is_told_while_reading_goes_on(
    vhost: Vhost, broker_node: PrivateNode, event_log: Path, admin: User
) -> None:
    broker = seen_by(broker_node, vhost, "tagged", "administrator")
    holds(broker)
    firehose.switch_on(admin, broker)
    with recording(broker) as counters:
        tag(broker_node, "tagged", "management")
        trouble = eventually(lambda: counters["trouble"], "it is told")
        assert "Add the tag “administrator”" in str(trouble)
        with foreign(vhost.amqp_url) as channel:
            hold(channel, "", "m1")
        so_many(1, event_log, kind="scheduled")
        call_api(
            broker_node, "PUT", "users/tagged", {"password": "tagged", "tags": "administrator"}
        )
        eventually(lambda: counters["trouble"] is None, "it is over")


def test_what_was_due_before_anybody_looked_is_not_overdue_for_ever(
    vhost: Vhost, event_log: Path, admin: User
) -> None:
    broker = make_broker(vhost)
    topology = holds(broker)
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    for key, due_at in (("before", now - hour), ("after", now + hour)):
        made = {"key": key, "entered_at": now - 2 * hour, "requested_delay": hour, "attempt": 1}
        ScheduledMessage.objects.create(broker=broker, topology=topology, due_at=due_at, **made)
    assert [row.key for row in listing.waiting([broker])] == ["after"]
    firehose.switch_on(admin, broker)
    with recording(broker):
        assert [row.key for row in listing.waiting([broker])] == ["after"]
    row = ScheduledMessage.objects.get(key="before")
    assert (row.left_at, row.caught_up) == (row.due_at, False)
    assert counts.scope([broker], datetime.now(UTC)).rows().count() == 1
