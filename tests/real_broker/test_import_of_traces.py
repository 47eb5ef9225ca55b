"""Traces as RabbitMQ's own plugin writes them, imported for the reports."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta
from functools import partial
from pathlib import Path

import orjson
import pytest

from analytics import launch
from analytics.importing.import_files import import_files, read_scope
from analytics.importing.sources import find
from analytics.importing.staging import event_of_line, read_lines
from analytics.mappings.mapping import load_shipped
from delayboard.demo.node import PrivateNode
from tests.analytics.builders import logged, results_in, write_log
from tests.analytics.retry_oracle import count
from tests.brokers import NEWEST, Vhost, call_api, every_generation
from tests.builders import address_of, applied_pair, eventually, make_broker, make_pair
from tests.publishing import publisher
from topology.broker.amqp.consumer import Consumer, getter
from topology.broker.errors import BrokerError
from topology.broker.properties.read import build_properties
from topology.deaths import read_history
from topology.message import Publish
from topology.operations import provision
from topology.structure.taps import NO_TAP

pytestmark = pytest.mark.django_db
NAMED, EQUAL = 5, 40


@pytest.fixture
def trace(broker_node: PrivateNode, vhost: Vhost) -> Iterator[Path]:
    """A trace of the vhost that is being written, and where."""
    yield from a_trace(broker_node, vhost, "json")


def a_trace(node: PrivateNode, vhost: Vhost, form: str) -> Iterator[Path]:
    name = f"{vhost.name}-{form}"
    account = {
        "tracer_connection_username": vhost.username,
        "tracer_connection_password": vhost.password,
    }
    path = f"traces/{vhost.name}/{name}"
    call_api(node, "PUT", path, {"format": form, "pattern": "#", "max_payload_bytes": 8, **account})
    yield node.folder / "traces" / f"{name}.log"
    call_api(node, "DELETE", path)


def delay(vhost: Vhost, *, message_ids: list[str], equal: int) -> None:
    with publisher(address_of(vhost), "test") as channel:
        for message_id in message_ids:
            stated = build_properties(message_id=message_id, headers={"a": [1, "ü"], "n": None})
            channel.publish(Publish("orders-retry", "orders", stated, b"more than eight bytes"))
        for _ in range(equal):
            channel.publish(Publish("orders-retry", "orders", build_properties(), b"same"))
        with suppress(BrokerError):
            channel.publish(Publish("amq.topic", "nobody", build_properties(message_id="other")))


def take_all(vhost: Vhost, number: int) -> None:
    with getter(address_of(vhost), "orders") as orders:
        for _ in range(number):
            orders.ack([eventually(orders.get, "the next message in orders").tag])


def lines_of(trace: Path, number: int) -> list[bytes]:
    def written() -> list[bytes]:
        lines = trace.read_bytes().splitlines() if trace.exists() else []
        return lines if len(lines) >= number else []

    return eventually(written, f"{number} lines of the trace")


def test_a_trace_becomes_entries_and_exits_once_each_however_often_it_is_imported(
    trace: Path,
    vhost: Vhost,
    event_log: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    start_spark: Callable[[], None],
) -> None:
    start_spark()
    topology = applied_pair(vhost)
    begun_at = datetime.now(UTC)
    delay(vhost, message_ids=[f"m{n}" for n in range(NAMED)], equal=EQUAL)
    take_all(vhost, NAMED + EQUAL)
    lines = lines_of(trace, 2 * (NAMED + EQUAL) + 1)
    scope = read_scope(topology.broker)
    known = 0
    # Spark starts for seconds, and brings the same lines whichever broker they came from.
    if request.node.callspec.params["broker_node"] == NEWEST:
        known = 30
        half = tmp_path / "half.log"
        half.write_bytes(b"".join(line + b"\n" for line in [*lines[:30], b'{"type":"gone"}']))
        first = import_files([half], scope=scope)
        assert (first.read, first.added, first.malformed) == (31, 30, 1)
        assert (first.problems[0].file, first.problems[0].number) == (str(half), 31)
    last = import_files([trace, Path(shutil.copy(trace, tmp_path / "copy.log"))], scope=scope)
    assert (last.added, last.known) == (len(lines) - known, len(lines) + known)

    events = logged(event_log)
    assert Counter((event.kind, event.topology) for event in events) == {
        ("scheduled", topology.slug): NAMED + EQUAL,
        ("delivered", topology.slug): NAMED + EQUAL,
        ("published", ""): 1,
    }
    assert {event.source for event in events} == {"import"}
    assert not any(event.caught_up for event in events)
    entry = next(e for e in events if (e.kind, e.message_id) == ("scheduled", "m0"))
    exit_ = next(e for e in events if (e.kind, e.message_id) == ("delivered", "m0"))
    assert begun_at - timedelta(seconds=1) < entry.recorded_at < exit_.recorded_at
    assert exit_.recorded_at < datetime.now(UTC)
    assert entry.due_at == entry.recorded_at + timedelta(milliseconds=500)
    assert (entry.requested_delay_ms, exit_.attempt, exit_.queue) == (500, 1, "orders")
    assert (entry.size_bytes, entry.content_id) == (8, exit_.content_id)
    assert orjson.loads(entry.headers_json)["a"] == [1, "ü"]
    assert entry.published_by.startswith(vhost.username)


def retry(vhost: Vhost) -> None:
    """40 messages of which consumers reject 12 once and 3 twice: 18 rejections."""
    times = {f"m{n}": 1 + (n < 3) for n in range(15)}
    with publisher(address_of(vhost), "test") as channel:
        for number in range(40):
            stated = build_properties(message_id=f"m{number}")
            channel.publish(Publish("orders", "orders", stated, b"work"))
    with Consumer(address_of(vhost), "orders", prefetch=100) as consumer:
        left = 40
        while left:
            for delivery in consumer.batch(limit=1, limit_bytes=10**6, wait=60, linger=0):
                properties = delivery.message.properties
                failures = read_history(properties.headers).count("orders", "rejected")
                if failures < times.get(properties.message_id or "", 0):
                    consumer.reject(delivery)
                else:
                    consumer.ack(through=delivery.tag)
                    left -= 1


def wait_in_a_queue_of_nobody(node: PrivateNode, vhost: Vhost) -> None:
    """Three messages through a delay queue that is of no topology: two by its TTL, one sooner."""
    arguments = {"x-message-ttl": 400, "x-dead-letter-exchange": "orders"}
    wait = {"durable": True, "arguments": arguments | {"x-dead-letter-routing-key": "orders"}}
    call_api(node, "PUT", f"queues/{vhost.name}/wait", wait)
    with publisher(address_of(vhost), "test") as channel:
        for name, expiration in (("sooner", "150"), ("w1", None), ("w2", None)):
            stated = build_properties(message_id=name, expiration=expiration)
            channel.publish(Publish("", "wait", stated, b"waits"))
    take_all(vhost, 3)


@every_generation
def test_a_trace_of_retries_is_reported_with_every_message_retry_and_death(
    trace: Path,
    broker_node: PrivateNode,
    vhost: Vhost,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    start_spark: Callable[[], None],
) -> None:
    topology = make_pair(make_broker(vhost), delay="200ms")
    topology.tap_type = NO_TAP
    topology.save()
    provision.apply(None, topology)
    wait_in_a_queue_of_nobody(broker_node, vhost)
    retry(vhost)
    scope = read_scope(topology.broker)
    traces = load_shipped("rabbitmq-tracing")
    events = [event_of_line(line, scope, traces) for line in lines_of(trace, 40 + 58 + 6)]
    known = [event for event in events if event]
    today = datetime.combine(datetime.now(UTC).date(), time(), UTC)
    of_ours = [event for event in known if event.topology == topology.slug]
    reported = count(of_ours, today, today + timedelta(days=1))
    assert (reported.messages, reported.retried, reported.attempts) == (40, 15, {1: 15, 2: 3})
    # Spark starts for long, and counts the same lines whichever broker they came from.
    if request.node.callspec.params["broker_node"] != NEWEST:
        return
    start_spark()
    write_log(tmp_path, known)
    day = datetime.now(UTC).date()
    tables = launch.run_day(tmp_path, day, results_in(tmp_path), pulse=lambda *_: None).tables
    names = ("messages", "retried")
    sums = {name: sum(row[name] for row in tables["retries"]) for name in names}
    assert sums == {"messages": 40, "retried": 15}
    assert {row["attempt"]: row["messages"] for row in tables["attempts"]} == {1: 15, 2: 3}
    measured = {
        (row["queue"], row["requested_delay_ms"], row["measured"], row["uncounted"])
        for row in tables["accuracy"]
    }
    assert measured == {("wait", 150, 1, 0), ("wait", 400, 2, 0), ("", 200, 0, 18)}
    (reason,) = tables["uncounted"]
    assert (reason["topology"], reason["reason"], reason["messages"]) == (
        topology.slug,
        "no_entry",
        18,
    )


def test_a_trace_in_the_text_format_is_read_as_the_json_one(
    broker_node: PrivateNode, vhost: Vhost
) -> None:
    """Properties are terms of Erlang there."""
    topology = applied_pair(vhost)

    def has_all(trace: Path) -> bool:
        return trace.exists() and trace.read_bytes().count(b"Payload: ") >= 5

    for trace in a_trace(broker_node, vhost, "text"):
        delay(vhost, message_ids=["m0"], equal=1)
        take_all(vhost, 2)
        eventually(partial(has_all, trace), "all messages")
        (source,) = find([trace])
        assert source.mapping
        with source.open() as file:
            lines = list(filter(None, read_lines(source, file)))
        scope = read_scope(topology.broker)
        events = [event_of_line(line, scope, source.mapping) for line in lines]
        known = [event for event in events if event]
        assert Counter((event.kind, event.topology, event.message_id) for event in known) == {
            ("scheduled", topology.slug, "m0"): 1,
            ("delivered", topology.slug, "m0"): 1,
            ("scheduled", topology.slug, ""): 1,
            ("delivered", topology.slug, ""): 1,
            ("published", "", "other"): 1,
        }
        exit_ = next(event for event in known if event.kind == "delivered")
        assert (exit_.requested_delay_ms, exit_.attempt, exit_.queue) == (500, 1, "orders")
        assert orjson.loads(exit_.headers_json)["a"] == [1, "ü"]
