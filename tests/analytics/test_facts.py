from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from django.db import transaction

from analytics import facts
from analytics.events import LARGEST_NUMBER
from analytics.facts import write_batch, write_facts
from analytics.log import EventLog, LogError
from analytics.models import Fact
from tests.analytics.builders import NOON
from tests.analytics.day_lines import read_day
from topology.message import Message, Properties, Publish, content_id, kept_by_streams
from topology.models import Broker, Topology

DEATH = {"queue": "orders", "reason": "rejected", "count": 2}
PARKED_MESSAGE = Message(
    "orders-retry",
    "orders",
    Properties(headers={"x-death": [DEATH]}, message_id="m1", correlation_id="c1"),
    b"hello",
    redelivered=True,
)


def state_one(broker: Broker, **changes: Any) -> None:
    values: dict[str, Any] = {"kind": "parked", "message": PARKED_MESSAGE, "at": NOON}
    facts.state(broker=broker, **(values | changes))


def test_a_fact_is_an_event_with_what_is_known_of_the_message(topology: Topology) -> None:
    state_one(topology.broker, topology=topology, kind="parked")
    ((_, event),) = facts.oldest(10)
    assert (event.kind, event.source, event.recorded_at) == ("parked", "delayboard", NOON)
    assert (event.broker, event.vhost, event.topology) == ("main", "/", "orders")
    assert (event.exchange, event.routing_key, event.queue) == ("orders-retry", "orders", "")
    assert (event.message_id, event.content_id) == (
        "m1",
        content_id(kept_by_streams(PARKED_MESSAGE.properties), PARKED_MESSAGE.body),
    )
    assert (event.deaths, event.death_queue, event.death_reason) == (2, "orders", "rejected")
    assert event.failures == (DEATH | {"began_s": None},)
    assert (event.size_bytes, event.redelivered, event.replay_id) == (5, True, "")
    assert event.published_at is None


def test_without_a_death_a_fact_has_what_the_client_library_states(broker: Broker) -> None:
    rascal = {"rascal": {"originalQueue": "orders", "error": {"code": "ETIMEDOUT"}}}
    state_one(broker, message=Message("", "dead", Properties(headers=rascal), b""))
    stated = facts.Stated(PARKED_MESSAGE, "c", 5)
    reset = Message("", "dead", Properties(headers={}), b"")
    with_headers = facts.Stated(reset, "c", 0, failed=rascal)
    facts.state_all(
        broker=broker, kind="replayed", of=[("dead", stated), ("dead", with_headers)], at=NOON
    )
    (_, alone), (_, died), (_, restarted) = facts.oldest(10)
    for event in (alone, restarted):
        assert (event.death_queue, event.death_reason) == ("orders", "republished")
        assert event.exception_type == "ETIMEDOUT"
    assert (died.death_reason, died.exception_type) == ("rejected", "")


def test_deaths_beyond_what_a_line_can_hold_are_the_largest_number(broker: Broker) -> None:
    many = Properties(headers={"x-death": [DEATH | {"count": 2**63 - 1}] * 2})
    state_one(broker, message=replace(PARKED_MESSAGE, properties=many))
    ((_, event),) = facts.oldest(10)
    assert event.deaths == LARGEST_NUMBER


def test_a_publish_is_stamped_with_its_moment(broker: Broker) -> None:
    publish = Publish("orders", "key", Properties(), b"")
    state_one(
        broker,
        kind="published",
        message=publish,
        tracking_id="t1",
        requested_delay=timedelta(seconds=5),
        destination="orders",
    )
    ((_, event),) = facts.oldest(10)
    assert (event.published_at, event.published_at_source) == (NOON, "delayboard")
    assert (event.exchange, event.requested_delay_ms, event.tracking_id) == ("orders", 5000, "t1")
    assert event.topology == ""


@pytest.mark.django_db(transaction=True)
def test_a_fact_of_a_transaction_that_fails_was_never_stated(broker: Broker) -> None:
    @transaction.atomic
    def park() -> None:
        state_one(broker)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        park()
    assert not Fact.objects.exists()


def test_draining_moves_facts_into_the_log_and_forgets_them(
    broker: Broker, event_log: Path
) -> None:
    for number in range(3):
        state_one(broker, at=NOON + timedelta(microseconds=number))
    events = [event for _, event in facts.oldest(10)]
    stop, beats = Event(), []
    stop.set()
    write_facts(stop=stop, beat=lambda counters: beats.append(dict(counters)))
    assert list(read_day(event_log, NOON.date())) == events
    assert beats == [{"drained": 3}]
    assert not Fact.objects.exists()


def test_facts_stay_when_the_log_cannot_be_written(broker: Broker, tmp_path: Path) -> None:
    state_one(broker)
    (tmp_path / "log").write_text("in the way")
    with pytest.raises(LogError):
        write_batch(EventLog(tmp_path / "log", "facts"))
    assert Fact.objects.count() == 1


def test_facts_that_are_stated_at_once_share_rows_and_are_drained_each(
    broker: Broker, event_log: Path
) -> None:
    number = 2 * facts.LINES + 1
    odd = Message("e\x00", "k\ud800", Properties(message_id="zero \x00, half \udcff"), b"")
    reported = [
        facts.Stated(PARKED_MESSAGE, f"c{n}", 5, replay_id=f"r-{n}") for n in range(number - 1)
    ]
    reported.append(facts.Stated(odd, "odd", 0, exchange="to", routing_key="there"))
    facts.state_all(broker=broker, kind="replayed", of=(("dead", one) for one in reported), at=NOON)
    assert Fact.objects.count() == 3
    assert write_batch(EventLog(event_log, "facts")) == number
    events = list(read_day(event_log, NOON.date()))
    assert [event.content_id for event in events] == [one.content_id for one in reported]
    assert len({event.event_id for event in events}) == number
    assert {(e.kind, e.broker, e.recorded_at, e.published_at) for e in events} == {
        ("replayed", "main", NOON, NOON)
    }
    first, last = events[0], events[-1]
    assert (first.exchange, first.replay_id, first.deaths) == ("orders-retry", "r-0", 2)
    assert (last.exchange, last.routing_key) == ("to", "there")
    assert last.message_id == "zero \\x00, half \\udcff"
    assert not Fact.objects.exists()


def test_many_are_stated_as_each_alone_is(broker: Broker) -> None:
    state_one(broker)
    properties = PARKED_MESSAGE.properties
    known = content_id(kept_by_streams(properties), PARKED_MESSAGE.body)
    reported = facts.Stated(PARKED_MESSAGE, known, len(PARKED_MESSAGE.body))
    facts.state_all(broker=broker, kind="parked", of=[("", reported)], at=NOON)
    (_, one), (_, other) = facts.oldest(10)
    assert one.event_id != other.event_id
    assert replace(one, event_id="") == replace(other, event_id="")
