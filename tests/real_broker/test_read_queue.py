"""Messages in delay queues without an exchange are changed, and all others keep their places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from threading import Event
from typing import Any

import pytest
from django.db.models.functions import Now

from analytics import facts
from analytics.models import Fact, ScheduledMessage
from delayboard.changes import read_queue, take
from delayboard.changes.check import ONLY_CANCEL, check
from delayboard.changes.request import READ, request, undo
from delayboard.models import ChangeKind, ChangeState, ScheduledChange
from tests.brokers import Vhost, every_generation
from tests.builders import address_of, applied_topology, eventually, make_broker
from tests.publishing import publisher
from tests.real_broker.changing import STATED, consuming, delay, states, store
from topology import work
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.management.client import Management
from topology.broker.management.observe import observe
from topology.broker.properties.read import build_properties
from topology.deaths import read_history
from topology.definitions import Arguments, ArgumentValue, Binding, Exchange, Queue
from topology.message import DOUBLED_HEADER, Publish
from topology.models import AuditEntry, Topology, Work, WorkState
from topology.operations.topology_rows import create_topology
from topology.patterns.chain.params import claim
from topology.patterns.delay_queues import params as delay_params
from topology.patterns.delay_queues.pattern import delay_queues
from topology.patterns.hold_queues import params as hold_params
from topology.patterns.hold_queues.pattern import hold_queues
from topology.patterns.retry_pair import params as pair_params
from topology.patterns.retry_pair.pattern import retry_pair
from topology.structure.find_chains import find_chains

pytestmark = pytest.mark.django_db(transaction=True)
SECOND = timedelta(seconds=1)
WAIT = 7 * SECOND
NAMES = [f"m{number:02}" for number in range(40)]


@pytest.fixture
def management(vhost: Vhost) -> Iterator[Management]:
    with Management(address_of(vhost)) as session:
        session.declare_queue(Queue("work"))
        yield session


@pytest.fixture
def delays(vhost: Vhost, management: Management) -> Topology:
    params = delay_params.Params("work", (WAIT, 600 * SECOND))
    return applied_topology(create_topology(None, make_broker(vhost), delay_queues.KIND, params))


@pytest.fixture
def holds(vhost: Vhost, management: Management) -> Topology:
    broker = make_broker(vhost)
    return applied_topology(create_topology(None, broker, hold_queues.KIND, hold_params.Params()))


def delay_all(
    topology: Topology, vhost: Vhost, wait: timedelta = WAIT, names: list[str] = NAMES
) -> dict[str, ScheduledMessage]:
    return delay(topology, vhost, [(name, "work", wait) for name in names])


def read(owner: str = "worker") -> str:
    """As the background task does; what hinders it, "" for nothing."""
    claimed = work.claim((READ,), owner)
    assert claimed is not None
    work.attempt(read_queue.attend, claimed, stop=Event())
    claimed.refresh_from_db()
    return claimed.error


def asked(rows: list[ScheduledMessage], kind: ChangeKind, at: datetime | None = None) -> None:
    assert [verdict.problem for verdict in request(None, rows, kind, at)] == [""] * len(rows)


@every_generation
def test_exactly_the_changed_messages_change_and_the_others_keep_order_and_time(
    vhost: Vhost, delays: Topology
) -> None:
    with consuming(vhost, ["work"]) as arrived:
        rows = delay_all(delays, vhost)
        asked([rows["m00"], rows["m20"], rows["m39"]], ChangeKind.CANCEL)
        asked([rows["m10"], rows["m30"]], ChangeKind.DELIVER_NOW)
        assert read() == ""
        assert set(states().values()) == {ChangeState.DONE}
        eventually(lambda: arrived.number == 37, "the others arrive", seconds=40)
    now, others = ["m10", "m30"], [n for n in NAMES if n not in {"m00", "m20", "m39"}]
    assert arrived.ids("work") == now + [name for name in others if name not in now]
    assert not arrived.marked.total()
    for name in others:
        row, at = rows[name], arrived.at("work", name)
        assert arrived.stated[name] == {"message_id": name, **STATED}
        assert row.due_at is not None
        # The row is a little younger than its message.
        assert at < row.due_at - SECOND if name in now else abs(at - row.due_at) < SECOND
    left = ScheduledMessage.objects.exclude(left_at=None)
    assert set(left.values_list("key", flat=True)) == {"m00", "m20", "m39", *now}
    assert not ScheduledChange.objects.filter(is_settled=False).exists()
    assert AuditEntry.objects.filter(action="message cancelled").count() == 3
    stated = Counter((fact.kind, fact.key) for _, fact in facts.oldest(100))
    cancelled = dict.fromkeys([("cancelled", "m00"), ("cancelled", "m20"), ("cancelled", "m39")], 1)
    assert stated == cancelled | {(k, m): 1 for k in ("moved", "published") for m in now}


@pytest.mark.parametrize("exit_key", ["work", "next"])
def test_an_adopted_chain_without_an_exchange_at_its_exit_is_read(
    vhost: Vhost, management: Management, exit_key: str
) -> None:
    """Where a second delay queue follows, a message may be in either."""
    ends: dict[str, ArgumentValue] = {"x-message-ttl": 7000, "x-dead-letter-exchange": ""}
    leads = {"wait": "work"} if exit_key == "work" else {"wait": "next", "next": "work"}
    for name, key in leads.items():
        arguments = Arguments({**ends, "x-dead-letter-routing-key": key})
        management.declare_queue(Queue(name, arguments=arguments))
    management.declare_exchange(Exchange("shop", "direct"))
    management.bind(Binding("shop", "wait", "later"))
    (chain,) = (one for one in find_chains(observe(management).definitions) if "wait" in one.queues)
    params = claim(chain, observe(management).declared)
    topology = applied_topology(create_topology(None, make_broker(vhost), "delay_chain", params))
    wait = WAIT if exit_key == "work" else 2 * WAIT
    with consuming(vhost, ["work"]) as arrived:
        rows = delay_all(topology, vhost, wait, ["a", "b", "c", "d"])
        ScheduledMessage.objects.update(queue="wait")
        rows = {row.key: row for row in ScheduledMessage.objects.all()}
        assert {row.exchange for row in rows.values()} == {"shop"}
        if exit_key == "next":
            (verdict,) = request(None, [rows["b"]], ChangeKind.CANCEL)
            assert "its dead-letter exchange and routing key are none, “next”" in verdict.problem
            return
        asked([rows["b"]], ChangeKind.CANCEL)
        asked([rows["d"]], ChangeKind.DELIVER_NOW)
        assert read() == ""
        assert set(states().values()) == {ChangeState.DONE}
        eventually(lambda: arrived.number == 3, "the others arrive", seconds=40)
    assert arrived.ids("work") == ["d", "a", "c"]
    assert not arrived.marked.total()


@pytest.mark.usefixtures("least_account")
def test_a_rescheduled_message_gets_a_hold_queue_of_its_own(vhost: Vhost, holds: Topology) -> None:
    with consuming(vhost, ["work"]) as arrived:
        rows = delay_all(holds, vhost, names=["a", "b", "c"])
        later = datetime.now(UTC) + 15 * SECOND
        sooner = datetime.now(UTC) + 6 * SECOND
        asked([rows["b"]], ChangeKind.RESCHEDULE, later)
        asked([rows["c"]], ChangeKind.RESCHEDULE, sooner)
        assert read() == ""
        assert ScheduledChange.objects.filter(state=ChangeState.DONE).count() == 2
        eventually(lambda: arrived.number == 3, "all arrive", seconds=40)
    assert arrived.ids("work") == ["c", "a", "b"]
    assert timedelta(0) <= arrived.at("work", "b") - later < SECOND
    assert timedelta(0) <= arrived.at("work", "c") - sooner < SECOND
    # The list of waiting messages gets both from these.
    assert "requested_delay_ms" in "".join(Fact.objects.values_list("line", flat=True))


def test_fixed_delays_have_no_queue_for_the_rest_of_a_delay(vhost: Vhost, delays: Topology) -> None:
    rows = delay_all(delays, vhost, names=["a"])
    later = datetime.now(UTC) + 60 * SECOND
    (verdict,) = request(None, [rows["a"]], ChangeKind.RESCHEDULE, later)
    assert "fixed delays" in verdict.problem


class Killed(BaseException):
    """In place of a kill: no step after it, and connections that just break."""


@pytest.mark.parametrize("point", ["begun", "published", "finished"])
def test_a_kill_repeats_at_most_the_message_in_work_and_marks_it(
    vhost: Vhost, delays: Topology, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    rows = delay_all(delays, vhost, wait=600 * SECOND)
    asked([rows["m05"]], ChangeKind.CANCEL)
    asked([rows["m03"]], ChangeKind.DELIVER_NOW)

    def die(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Consumer, "give_back", lambda self: None)
        match point:
            case "begun":
                patched.setattr("topology.broker.amqp.pipeline.Publisher.publish", die)
            case "published":
                finish = take.finish
                patched.setattr(
                    take,
                    "finish",
                    lambda change, message: (
                        finish(change, message) if change.kind == ChangeKind.CANCEL else die()
                    ),
                )
            case "finished":
                patched.setattr(Consumer, "ack", die)
        with pytest.raises(Killed):
            read("first")
    Work.objects.update(leased_until_at=Now())
    # The broker may not have put back yet what the broken connection had.
    while error := read("second"):
        assert "consumers" in error
        Work.objects.filter(state=WorkState.WAITING).update(not_before_at=None)
    assert set(states().values()) == {ChangeState.DONE}
    assert not ScheduledChange.objects.filter(is_settled=False).exists()
    with Consumer(address_of(vhost), "work") as consumer:
        got = consumer.batch(limit=10, limit_bytes=10**6, wait=5, linger=0.5)
    ids = [one.message.properties.message_id for one in got]
    assert ids == ["m03"] * (2 if point == "published" else 1)
    is_marked = DOUBLED_HEADER in got[-1].message.headers
    assert is_marked is (point != "finished")
    change = ScheduledChange.objects.get(key="m03")
    assert change.may_be_duplicated is (point != "finished")
    assert waiting_in(vhost, "work_dlq_600") == [n for n in NAMES if n not in ("m03", "m05")]


def waiting_in(vhost: Vhost, queue: str) -> list[str]:
    """The ids in their order; they go back."""
    found = []
    with getter(address_of(vhost), queue) as source:
        while delivery := source.get():
            found.append(delivery.message.properties.message_id or "")
    return found


def test_retries_are_cancelled_and_the_others_keep_their_counts(vhost: Vhost) -> None:
    """The x-death of what is put back is untouched, for no message is published again."""
    params = pair_params.Params("pair", 600 * SECOND)
    topology = applied_topology(create_topology(None, make_broker(vhost), retry_pair.KIND, params))
    with publisher(address_of(vhost), "test") as channel:
        for name in ("a", "b", "c"):
            properties = build_properties({}, message_id=name, delivery_mode=2)
            channel.publish(Publish("pair", "pair", properties, name.encode()))
    rows: dict[str, ScheduledMessage] = {}
    with Consumer(address_of(vhost), "pair") as consumer:
        while len(rows) < 3:
            for one in consumer.batch(limit=3, limit_bytes=10**6, wait=5):
                consumer.reject(one)
                row = store(topology, one.message, "pair", 600 * SECOND)
                row.queue = "pair-retry"
                row.save()
                rows[row.key] = row
    (refused,) = request(None, [rows["c"]], ChangeKind.DELIVER_NOW)
    assert refused.problem == ONLY_CANCEL
    asked([rows["b"]], ChangeKind.CANCEL)
    assert read() == ""
    assert states() == {"b": ChangeState.DONE}
    with getter(address_of(vhost), "pair-retry") as source:
        left = [eventually(source.get, "it was put back").message for _ in range(2)]
        assert source.get() is None
    assert [message.properties.message_id for message in left] == ["a", "c"]
    assert {read_history(message.headers).total for message in left} == {1}


@pytest.mark.parametrize("state", ["full", "deleted"])
def test_a_destination_that_takes_nothing_keeps_the_message_in_its_delay(
    vhost: Vhost, management: Management, delays: Topology, state: str
) -> None:
    rows = delay_all(delays, vhost, wait=600 * SECOND)
    management.delete_queue("work", only_if_empty=False)
    if state == "full":
        full = Arguments({"x-max-length": 0, "x-overflow": "reject-publish"})
        management.declare_queue(Queue("work", arguments=full))
    asked([rows["m03"]], ChangeKind.DELIVER_NOW)
    asked([rows["m05"]], ChangeKind.CANCEL)
    assert read() == ""
    assert states() == {"m03": ChangeState.FAILED, "m05": ChangeState.DONE}
    assert ScheduledChange.objects.get(key="m03").error
    assert waiting_in(vhost, "work_dlq_600") == [name for name in NAMES if name != "m05"]


def test_cancelled_messages_are_gone_although_the_others_cannot_be_published_yet(
    vhost: Vhost, delays: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = delay_all(delays, vhost, wait=600 * SECOND, names=["a", "b", "c"])
    asked([rows["a"]], ChangeKind.DELIVER_NOW)
    with monkeypatch.context() as patched:
        patched.setattr(Management, "alarms", lambda self: ["memory on rabbit@here"])
        assert "memory on rabbit@here" in read()
        asked([rows["b"]], ChangeKind.CANCEL)
        assert "memory on rabbit@here" in read_again()
    assert states() == {"a": ChangeState.PENDING, "b": ChangeState.DONE}
    with monkeypatch.context() as patched:
        patched.setattr(read_queue, "LONGEST_READING_SECONDS", 0.0)
        assert "took longer than 0 s. No message was changed." in read_again()
    assert waiting_in(vhost, "work_dlq_600") == ["a", "c"]
    assert read_again() == ""
    assert states() == {"a": ChangeState.DONE, "b": ChangeState.DONE}
    assert waiting_in(vhost, "work_dlq_600") == ["c"]


def test_a_queue_with_a_consumer_is_left_alone_until_the_change_is_undone(
    vhost: Vhost, delays: Topology
) -> None:
    rows = delay_all(delays, vhost, wait=600 * SECOND, names=["a", "b"])
    asked([rows["a"]], ChangeKind.CANCEL)
    with Consumer(address_of(vhost), "work_dlq_600"):
        assert "Stop the consumers" in read()
        assert states() == {"a": ChangeState.PENDING}
        eventually(lambda: "Stop the consumers" in dry_run(rows["b"]), "the consumer is reported")
    assert undo(None, ScheduledChange.objects.get())
    Work.objects.update(not_before_at=None)
    assert read() == ""
    assert waiting_in(vhost, "work_dlq_600") == ["a", "b"]


def dry_run(row: ScheduledMessage) -> str:
    (verdict,) = check([row], ChangeKind.CANCEL, datetime.now(UTC))
    return verdict.problem


def test_a_message_that_is_not_in_the_queue_is_missed(vhost: Vhost, delays: Topology) -> None:
    rows = delay_all(delays, vhost, wait=600 * SECOND, names=["a", "b"])
    asked([rows["a"]], ChangeKind.CANCEL)
    assert waiting_in(vhost, "work_dlq_600") == ["a", "b"]
    with Consumer(address_of(vhost), "work_dlq_600") as consumer:
        (first, *_) = consumer.batch(limit=10, limit_bytes=10**6, wait=5, linger=0.5)
        consumer.ack(through=first.tag)
    eventually(lambda: read_again() == "", "the queue is free")
    change = ScheduledChange.objects.get()
    assert change.state == ChangeState.MISSED
    assert "does not contain" in change.error


def test_a_change_requested_while_the_queue_is_read_has_its_own_reading(
    vhost: Vhost, delays: Topology
) -> None:
    rows = delay_all(delays, vhost, wait=600 * SECOND, names=["a", "b", "c"])
    asked([rows["a"]], ChangeKind.CANCEL)
    begin = take.Tombstones.__init__

    def request_after(self: take.Tombstones, *given: Any, **more: Any) -> None:
        begin(self, *given, **more)
        asked([rows["b"]], ChangeKind.CANCEL)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(take.Tombstones, "__init__", request_after)
        assert read() == ""
    assert states() == {"a": ChangeState.DONE, "b": ChangeState.PENDING}
    eventually(lambda: read_again() == "", "the queue is free")
    assert set(states().values()) == {ChangeState.DONE}
    assert waiting_in(vhost, "work_dlq_600") == ["c"]


def read_again() -> str:
    Work.objects.filter(state=WorkState.WAITING).update(not_before_at=None)
    return read()


@pytest.mark.long
def test_two_thousand_messages(vhost: Vhost, delays: Topology) -> None:
    names = [f"m{number:04}" for number in range(2000)]
    rows = delay_all(delays, vhost, wait=600 * SECOND, names=names)
    asked([rows[name] for name in names[::20]], ChangeKind.CANCEL)
    asked([rows[name] for name in names[7::40]], ChangeKind.DELIVER_NOW)
    assert read() == ""
    assert set(states().values()) == {ChangeState.DONE}
    others = [name for name in names if name not in states()]
    assert waiting_in(vhost, "work_dlq_600") == others


def test_other_publishes_stay_behind_what_is_put_back(vhost: Vhost, delays: Topology) -> None:
    """Also those that come while the queue is read."""
    rows = delay_all(delays, vhost, wait=600 * SECOND)
    asked([rows["m03"]], ChangeKind.CANCEL)
    whole = read_queue._Reading._take_out

    def publish_between(self: Any, found: Any) -> list[int]:
        with publisher(address_of(vhost), "test") as channel:
            late = build_properties({}, message_id="late", delivery_mode=2)
            channel.publish(Publish("", "work_dlq_600", late, b"late"))
        return whole(self, found)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(read_queue._Reading, "_take_out", publish_between)
        assert read() == ""
    others = [name for name in NAMES if name != "m03"]
    assert waiting_in(vhost, "work_dlq_600") == [*others, "late"]
