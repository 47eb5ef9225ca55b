"""Publishing, and its recorded arrival: the parts together on a real broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from analytics.facts import write_facts
from analytics.models import ScheduledMessage
from analytics.recorder.follow import follow
from analytics.recorder.record import record
from delayboard.models import Publication
from delayboard.publishing.publish_message import OutgoingMessage, predict, send
from delayboard.publishing.track import Track, track
from tests.brokers import Vhost
from tests.builders import (
    address_of,
    applied_pair,
    applied_topology,
    eventually,
    make_broker,
    make_user,
)
from tests.publishing import publisher
from tests.real_broker.refusing import FULL, SAID, refuse_beside
from tests.topology.amqp_entries import table_entries
from topology import snapshots
from topology.broker.amqp.consumer import getter
from topology.broker.amqp.depths import live_depths
from topology.broker.management.client import Management
from topology.broker.properties.field_values import read_table
from topology.broker.properties.read import read_properties
from topology.definitions import Queue
from topology.message import Publish, Route
from topology.models import Role
from topology.operations.topology_rows import create_topology
from topology.patterns.delay_queues import params as delay_queues_params
from topology.patterns.delay_queues.pattern import delay_queues

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("event_log")]


@contextmanager
def at_work(*background_tasks: Callable[..., None]) -> Iterator[None]:
    """These tasks of the worker, for the length of a block."""
    stop = threading.Event()

    def run(background_task: Callable[..., None]) -> None:
        try:
            background_task(stop=stop, beat=lambda details: None)
        finally:
            connection.close()

    threads = [
        threading.Thread(target=run, args=(background_task,))
        for background_task in background_tasks
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def test_a_delayed_message_is_predicted_sent_and_seen_to_arrive(vhost: Vhost) -> None:
    topology = applied_pair(vhost, delay="300ms")
    user = make_user("ada", Role.OPERATOR)
    snapshot = snapshots.poll(topology.broker, 20).snapshot
    assert snapshot is not None
    prediction = predict(snapshot, "orders-retry", "orders")
    assert prediction.arrives_after == timedelta(milliseconds=300)
    assert prediction.sentence == "The message arrives in orders after 300ms."
    with at_work(partial(record, topology.pk), follow):
        outgoing = OutgoingMessage(Route("orders-retry", "orders"), b"{}", {"tenant": 42})
        row = send(user, topology.broker, outgoing, prediction)
        assert row.sent == "confirmed"

        def settled() -> Track | None:
            reported = track(row, datetime.now(UTC))
            return reported if reported.is_settled else None

        followed = eventually(settled, "the arrival is observed")
    assert followed.mark == "arrived"
    assert followed.observation is not None
    assert followed.observation.lateness is not None
    assert "The message arrived at" in followed.sentence


def test_an_unroutable_publish_is_told_and_written_down(vhost: Vhost) -> None:
    topology = applied_pair(vhost)
    snapshot = snapshots.poll(topology.broker, 20).snapshot
    assert snapshot is not None
    prediction = predict(snapshot, "orders", "nobody")
    assert not prediction.is_good
    outgoing = OutgoingMessage(Route("orders", "nobody"), b"")
    row = send(make_user("ada", Role.OPERATOR), topology.broker, outgoing, prediction)
    assert row.outcome == "refused"
    assert "returned the message" in row.error


def test_a_publish_that_another_queue_refused_may_have_arrived(vhost: Vhost) -> None:
    topology = applied_pair(vhost)
    with Management(address_of(vhost)) as management:
        refuse_beside(management, "orders", "orders")
    snapshot = snapshots.poll(topology.broker, 20).snapshot
    assert snapshot is not None
    prediction = predict(snapshot, "orders", "orders")
    outgoing = OutgoingMessage(Route("orders", "orders"), b"")
    row = send(make_user("ada", Role.OPERATOR), topology.broker, outgoing, prediction)
    assert row.outcome == "unknown"
    assert f"{SAID}“orders”." in row.error
    assert live_depths(address_of(vhost), ["orders"]) == {"orders": 1}
    with Management(address_of(vhost)) as management:
        management.delete_queue("orders", only_if_empty=False)
        management.declare_queue(Queue("orders", arguments=FULL))
    alone = OutgoingMessage(Route("", "orders"), b"")
    row = send(make_user("bob", Role.OPERATOR), topology.broker, alone, prediction)
    assert row.outcome == "refused"
    assert "“orders” is full and rejected the message" in row.error


def test_a_publish_that_only_our_own_tap_takes_is_no_success(vhost: Vhost) -> None:
    topology = applied_pair(vhost)
    with Management(address_of(vhost)) as management:
        management.delete_queue("orders", only_if_empty=True)
    snapshot = snapshots.poll(topology.broker, 20).snapshot
    assert snapshot is not None
    prediction = predict(snapshot, "orders", "orders")
    outgoing = OutgoingMessage(Route("orders", "orders"), b"")
    row = send(make_user("ada", Role.OPERATOR), topology.broker, outgoing, prediction)
    assert row.outcome == "refused"
    assert "No queue but a tap of Delayboard receives the message" in row.error


def test_properties_pass_a_publish_bit_for_bit_whatever_pika_makes_of_them(vhost: Vhost) -> None:
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
    with getter(address_of(vhost), "orders") as source:
        message = eventually(source.get, "it is there").message
    came = message.properties.raw
    assert came[:6] == raw[:6]
    # RabbitMQ 4 sorts a table by its names; the bytes of each entry stay.
    assert {e[2] for e in table_entries(came[6:])} == {e[2] for e in table_entries(odd)}
    assert message.headers == read_table(odd)


def published(*arguments: str) -> tuple[list[dict[str, str]], int]:
    """What the command prints as JSON, and its exit code."""
    out = StringIO()
    try:
        call_command("publish", *arguments, "--json", stdout=out)
    except SystemExit as ended:
        return [json.loads(line) for line in out.getvalue().splitlines()], int(str(ended.code))
    return [json.loads(line) for line in out.getvalue().splitlines()], 0


def test_the_command_publishes_and_waits_for_the_arrival(vhost: Vhost) -> None:
    topology = applied_pair(vhost, delay="300ms")
    arguments = (f"--topology={topology.slug}", "--delay=300ms", "--body={}")
    with at_work(partial(record, topology.pk), follow):
        lines, code = published(*arguments, "--wait=60")
    assert [line["state"] for line in lines] == ["predicted", "published", "arrived"]
    assert code == 0
    lines, code = published(*arguments, "--wait=0")
    assert (lines[-1]["state"], code) == ("waiting", 3)
    lines, code = published(*arguments, "--dry-run")
    assert ([line["state"] for line in lines], code) == (["predicted"], 0)
    assert Publication.objects.count() == 2
    with pytest.raises(CommandError, match="--delay: Choose one of these delays: 300ms"):
        published(f"--topology={topology.slug}", "--delay=5s")


def test_a_delayed_message_is_listed_and_can_be_changed_where_no_tap_records_its_entry(
    vhost: Vhost,
) -> None:
    delay = timedelta(minutes=1)
    with Management(address_of(vhost)) as management:
        management.declare_queue(Queue("work"))
    params = delay_queues_params.Params("work", (delay,))
    row = create_topology(None, make_broker(vhost), delay_queues.KIND, params)
    topology = applied_topology(row)
    with at_work(write_facts, follow):
        published(f"--topology={topology.slug}", "--delay=1m", "--body={}", "--message-id=one")
        rows = ScheduledMessage.objects.filter(topology=topology)
        listed = eventually(rows.first, "it is listed")
    assert (listed.key, listed.destination) == ("one", "work")
    confirmed_at = Publication.objects.get().confirmed_at
    assert confirmed_at is not None
    assert listed.due_at == confirmed_at + delay
    out = StringIO()
    call_command("scheduled", "cancel", "--id=one", "--dry-run", stdout=out)
    assert out.getvalue().endswith("1 of 1 changes would be requested.\n")
